"""What the API process writes to stderr: how its lines look, and the one that says every ten seconds how busy it is."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable

from headrace.frontend.metrics import Metrics


def configure_logging(level: str, format: str) -> None:
    """`level` is "debug", "info", ...; `format` "text" or "json", with one JSON object in each line."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JSONFormatter() if format == "json" else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its start and stop are told by the launcher


class JSONFormatter(logging.Formatter):
    """`time` is UTC, as RFC 3339 has it."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class ThroughputLog:
    """Sums up what has happened since it was last asked."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._since = clock()
        self._before = metrics.totals
        self._was_busy = False

    def line(self) -> str | None:
        """None where there is nothing to say: no tokens came and nothing is under way, now and the last time."""
        now, totals, stats = self._clock(), self._metrics.totals, self._metrics.scheduler
        is_busy = totals != self._before or bool(stats.num_running_reqs or stats.num_waiting_reqs)
        elapsed = max(now - self._since, 1e-9)
        prompt, generated, queries, hits = (a - b for a, b in zip(totals, self._before, strict=True))
        was_busy, self._was_busy = self._was_busy, is_busy
        self._since, self._before = now, totals
        if not is_busy and not was_busy:
            return None
        return (
            f"prompt {prompt / elapsed:.1f} tok/s, generation {generated / elapsed:.1f} tok/s, "
            f"running {stats.num_running_reqs}, waiting {stats.num_waiting_reqs}, "
            f"KV cache {stats.kv_cache_usage:.1%}, prefix hits {hits / queries if queries else 0.0:.1%}"
        )
