"""Lines of the log: the summary every ten seconds, JSON, and the line for each request where it is wanted."""

from __future__ import annotations

import json
import logging
import sys

from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.contracts.stats import SchedulerStats
from headrace.frontend.iteration_stats import IterationStats
from headrace.frontend.logs import JSONFormatter, ThroughputLog
from headrace.frontend.metrics import Metrics
from tests.unit.frontend.serving import MAX_MODEL_LEN, Server, run_scenario, script_of


def test_the_summary_counts_since_the_last_one_and_ends_when_nothing_happens():
    now = 100.0
    metrics = Metrics("demo", 256)
    log = ThroughputLog(metrics, lambda: now)
    assert log.line() is None
    metrics.record_iteration(IterationStats(num_prompt_tokens=300, num_generation_tokens=50))
    metrics.record_scheduler(
        SchedulerStats(
            num_running_reqs=3, num_waiting_reqs=2, kv_cache_usage=0.125, prefix_cache_queries=40, prefix_cache_hits=10
        )
    )
    now += 10
    assert log.line() == (
        "prompt 30.0 tok/s, generation 5.0 tok/s, running 3, waiting 2, KV cache 12.5%, prefix hits 25.0%"
    )
    metrics.record_iteration(IterationStats(num_generation_tokens=10))
    metrics.record_scheduler(SchedulerStats(prefix_cache_queries=40, prefix_cache_hits=10))
    now += 10
    assert log.line().startswith("prompt 0.0 tok/s, generation 1.0 tok/s, running 0")
    assert log.line().startswith("prompt 0.0 tok/s, generation 0.0 tok/s, running 0")  # once more: it is idle now
    assert log.line() is None


def test_a_line_of_json():
    try:
        raise ValueError("oh\nno")
    except ValueError:
        record = logging.LogRecord("a.b", logging.ERROR, "f.py", 1, "said %s\n", ("x",), sys.exc_info())
    record.created, record.msecs = 1_000_000_000.25, 250.0
    (line,) = JSONFormatter().format(record).split("\n")
    fields = json.loads(line)
    assert fields.pop("exception").endswith("ValueError: oh\nno")
    assert fields == {"time": "2001-09-09T01:46:40.250Z", "level": "error", "logger": "a.b", "message": "said x\n"}


def test_requests_are_logged_where_that_is_wanted_and_without_contents(config, input_processor, tokenizer, caplog):
    async def scenario(server: Server) -> None:
        headers = {"x-request-id": "abc"}
        await server.client.post("/v1/completions?q=secret", json={"prompt": "secret"}, headers=headers)

    caplog.set_level(logging.INFO, "headrace")
    script = script_of(tokenizer, ["there"])
    run_scenario(config, input_processor, scenario, script)
    assert not caplog.messages
    wanted = resolve(EngineConfig(max_model_len=MAX_MODEL_LEN, enable_log_requests=True))
    run_scenario(wanted, input_processor, scenario, script)
    (line,) = caplog.messages
    assert line.startswith("abc POST b'/v1/completions': 200 in 0.")
    assert "secret" not in line
