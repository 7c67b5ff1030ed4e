"""What a benchmark has found: as text for people, as JSON for programs (docs/benchmarking.md has the schema)."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from headrace import __version__
from headrace.bench.metrics import LATENCIES, Figures
from headrace.bench.record import Record
from headrace.config.cpu import cpu_flags, cpu_model, usable_cores
from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import NATIVE_KERNELS
from headrace.errors import StartupError

SCHEMA = 1
BUSY_CLIENT = 0.7  # share of a core from which on the client may be what is measured
WIDTH = 52  # of the column of names


class Report(msgspec.Struct, kw_only=True):
    """One run of one benchmark."""

    benchmark: str
    settings: dict[str, Any]  # as they were used, drawn seeds included
    results: dict[str, Any]
    lines: list[str]  # the results, for people
    kernels: str  # that computed, as far as this installation knows
    notes: list[str] = []  # what a reader must know to trust the figures
    records: list[Record] = []  # where it is about requests
    date: str = msgspec.field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))

    def render(self) -> str:
        machine = f"{cpu_model()}, {usable_cores()} cores, kernels {self.kernels}, headrace {__version__}, {self.date}"
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([f"headrace bench {self.benchmark}", machine, "", *self.lines, *notes])

    def document(self, command: Sequence[str], *, with_records: bool) -> dict[str, Any]:
        """What goes into the file. Times in `records` are seconds since the first arrival."""
        found: dict[str, Any] = {
            "schema": SCHEMA,
            "benchmark": self.benchmark,
            "date": self.date,
            "command": list(command),
            "environment": environment() | {"kernels": self.kernels},
            "settings": self.settings,
            "results": self.results,
            "notes": self.notes,
        }
        if with_records:
            began = min((record.arrival for record in self.records), default=0.0)
            found["records"] = [relative(record, began) for record in self.records]
        return found

    def write_json(self, path: Path, command: Sequence[str], *, with_records: bool = False) -> None:
        path.write_text(json.dumps(self.document(command, with_records=with_records), indent=2) + "\n")


def environment() -> dict[str, Any]:
    """The machine that the benchmark ran on, and what was installed there."""
    return {
        "cpu": cpu_model(),
        "instruction_sets": cpu_flags(),
        "cores": usable_cores(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "headrace": __version__,
        "packages": {name: package_version(name) for name in ("numpy", "uvloop", "httptools", "msgspec")},
        "openblas_coretype": os.environ.get("OPENBLAS_CORETYPE"),
    }


def package_version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def kernels() -> str:
    """The instruction set of this installation's native kernels, or numpy where there are none."""
    if not find_spec(NATIVE_KERNELS):
        return "numpy"
    try:
        from headrace.backends.native.extension import choose_instruction_set

        return choose_instruction_set()
    except StartupError:
        return "numpy"


def relative(record: Record, began: float) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    for name in ("arrival", "sent", "finished"):
        fields[name] -= began
    fields["text_times"] = [when - began for when in record.text_times]
    return fields


def count_errors(records: Sequence[Record]) -> dict[str, int]:
    """Each reason why requests failed, the commonest first."""
    return dict(Counter(record.error for record in records if record.error is not None).most_common())


def render_figures(figures: Figures, latencies: Sequence[str], percentiles: Sequence[float]) -> list[str]:
    """The table: counts and rates, then a row for each latency."""
    rows = [
        ("requests completed", figures["completed"]),
        ("requests failed", figures["failed"]),
        ("duration, s", figures["duration"]),
        ("input tokens", figures["total_input_tokens"]),
        ("of these from the prefix cache", figures["total_cached_tokens"]),
        ("output tokens", figures["total_output_tokens"]),
        ("requests/s", figures["request_throughput"]),
        ("requests/s within the goals (goodput)", figures.get("request_goodput")),
        ("output tokens/s", figures["output_throughput"]),
        ("input and output tokens/s", figures["total_token_throughput"]),
        ("most requests in flight", figures["max_in_flight"]),
    ]
    lines = [f"{name:<{WIDTH}}{cell(value)}" for name, value in rows if value is not None]
    columns = ["mean", *(f"p{p:g}" for p in percentiles)]
    lines += ["", f"{'milliseconds':<{WIDTH}}" + "".join(f"{column:>10}" for column in columns)]
    for name in latencies:
        keys = [f"{column}_{name}_ms" for column in columns]
        title = f"{name.upper()}, {LATENCIES[name][0]}"
        lines.append(f"{title:<{WIDTH}}" + "".join(cell(figures[key]) for key in keys))
    return lines


def render_spread(name: str, mean: float, percentiles: Mapping[str, float]) -> list[str]:
    """A row for a mean and one for each percentile."""
    rows = [(f"{name}, mean", mean), *((f"{name}, p{p}", value) for p, value in percentiles.items())]
    return [f"{title:<{WIDTH}}{cell(value)}" for title, value in rows]


def changed_settings(config: EngineConfig) -> dict[str, Any]:
    """What was set of the engine, and is not its default."""
    default = EngineConfig()
    return {name: value for name, value in msgspec.structs.asdict(config).items() if value != getattr(default, name)}


def render_errors(errors: Mapping[str, int]) -> list[str]:
    return [f"failed {count} times: {error}" for error, count in errors.items()]


def cell(value: float | int | None) -> str:
    if value is None:
        return f"{'-':>10}"
    return f"{value:>10,}" if isinstance(value, int) else f"{value:>10,.2f}"
