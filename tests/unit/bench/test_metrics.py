"""Figures against numpy, and against a trace that is small enough to compute by hand."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.bench.metrics import describe, max_in_flight, meets, percentile, summarize
from headrace.bench.record import Record

SEEDS = range(20)


def record(arrival: float, *text_times: float, num_tokens: int | None = None, **more: object) -> Record:
    return Record(
        arrival,
        arrival,
        list(text_times),
        text_times[-1],
        num_prompt_tokens=10,
        num_output_tokens=len(text_times) if num_tokens is None else num_tokens,
        **more,
    )


def failure(arrival: float, ended: float) -> Record:
    """One that broke off after a quick beginning."""
    return Record(arrival, arrival, [arrival + 0.001], ended, num_output_tokens=1, error="gone")


@pytest.mark.parametrize("seed", SEEDS)
def test_percentiles_are_numpys(seed):
    rng = np.random.default_rng(seed)
    values = sorted(rng.lognormal(size=rng.integers(1, 200)).tolist())
    for p in (0, 1, 25, 50, 90, 99, 99.9, 100):
        assert percentile(values, p) == pytest.approx(np.percentile(values, p), rel=1e-12)
    found = describe("x", values, (90, 99.9))
    assert found["mean_x_ms"] == pytest.approx(1e3 * np.mean(values))
    assert found["std_x_ms"] == pytest.approx(1e3 * np.std(values))
    assert found["median_x_ms"] == pytest.approx(1e3 * np.median(values))
    assert found["p99.9_x_ms"] == pytest.approx(1e3 * np.percentile(values, 99.9))


def test_a_trace_by_hand():
    records = [
        record(0.0, 0.5, 0.7, 1.0),
        record(1.0, 2.0, num_tokens=1, num_cached_tokens=4),
        record(1.0, 1.25, 2.25, num_tokens=5, num_wanted_tokens=6),
        failure(1.5, 4.0),
    ]
    found = summarize(records, percentiles=(50,), goals={"ttft": 600})
    expected = {
        "completed": 3,
        "failed": 1,
        "short_answers": 1,
        "duration": 4.0,  # to the end of the last, whatever became of it
        "total_input_tokens": 30,
        "total_cached_tokens": 4,
        "total_output_tokens": 9,
        "request_throughput": 0.75,
        "request_goodput": 0.5,
        "output_throughput": 2.25,
        "total_token_throughput": 9.75,
        "max_in_flight": 3,
        "median_ttft_ms": 500.0,
        "mean_tpot_ms": 250.0,  # of two: the one with a single token has none
        "median_itl_ms": 300.0,
        "median_e2el_ms": 1000.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_failures_are_never_quick_requests():
    found = summarize([failure(0.0, 0.002), failure(0.0, 0.002)], goals={"e2el": 1000.0})
    assert found["completed"] == 0
    assert found["request_goodput"] == 0
    assert found["total_output_tokens"] == 0
    assert found["p99_ttft_ms"] is None
    assert found["mean_e2el_ms"] is None


@pytest.mark.parametrize(
    ("goals", "is_met"),
    [
        ({}, True),
        ({"ttft": 500.0, "tpot": 250.0, "e2el": 1000.0}, True),
        ({"ttft": 499.0}, False),
        ({"ttft": 500.0, "tpot": 249.0}, False),
        ({"e2el": 999.0}, False),
    ],
)
def test_goodput_asks_for_every_goal(goals, is_met):
    assert meets(record(0.0, 0.5, 0.75, 1.0), goals) is is_met


def test_a_single_token_has_no_time_per_token_to_miss():
    assert meets(record(0.0, 0.5), {"tpot": 1.0})
    assert not meets(failure(0.0, 0.5), {})


def test_in_flight_counts_from_the_sending():
    waited = Record(0.0, 2.0, [2.5], 3.0)
    assert max_in_flight([record(0.0, 1.0, 2.0), waited, record(2.5, 2.75)]) == 2
