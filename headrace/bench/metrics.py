"""From records to figures. The names are those of `vllm bench serve`: ttft, tpot, itl, e2el, in milliseconds.

A percentile is the value at the rank `(count - 1) * p / 100` of the sorted values, between two of them by linear
interpolation (type 7 of Hyndman and Fan, 1996; numpy's default). Only completed requests are in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from headrace.bench.record import Record

Figures = dict[str, float | int | None]  # None: there was nothing to measure it by

# Name -> what it is, and its values in one request, in seconds.
LATENCIES: dict[str, tuple[str, Callable[[Record], Sequence[float]]]] = {
    "ttft": ("time to first token", lambda record: [record.ttft]),
    "tpot": ("time per output token after the first", lambda record: [] if record.tpot is None else [record.tpot]),
    "itl": ("inter-token latency", lambda record: record.itls),
    "e2el": ("end-to-end latency", lambda record: [record.e2el]),
}
GOODPUT_METRICS = ("ttft", "tpot", "e2el")


def percentile(ordered: Sequence[float], p: float) -> float:
    """Of values in ascending order; `p` is 0 to 100."""
    rank = (len(ordered) - 1) * p / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def describe(name: str, values: Sequence[float], percentiles: Sequence[float]) -> Figures:
    """Mean, standard deviation (of the values themselves), median and percentiles of seconds, in milliseconds."""
    keys = [f"mean_{name}_ms", f"std_{name}_ms", f"median_{name}_ms", *(f"p{p:g}_{name}_ms" for p in percentiles)]
    if not values:
        return dict.fromkeys(keys)
    ordered = sorted(value * 1e3 for value in values)
    mean = math.fsum(ordered) / len(ordered)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / len(ordered))
    return dict(zip(keys, [mean, std, *(percentile(ordered, p) for p in (50, *percentiles))], strict=True))


def meets(record: Record, goals: Mapping[str, float]) -> bool:
    """Whether a request was answered within all `goals`, in milliseconds. It meets those that it has no value of."""
    return record.is_completed and all(
        value * 1e3 <= goal for name, goal in goals.items() for value in LATENCIES[name][1](record)
    )


def summarize(
    records: Sequence[Record],
    *,
    latencies: Sequence[str] = tuple(LATENCIES),
    percentiles: Sequence[float] = (50, 90, 99),
    goals: Mapping[str, float] | None = None,
) -> Figures:
    """All figures of a run. Its duration is that from the first arrival to the last end; tokens are those of completed
    requests."""
    completed = [record for record in records if record.is_completed]
    duration = max(record.finished for record in records) - min(record.arrival for record in records)
    num_in = sum(record.num_prompt_tokens for record in completed)
    num_out = sum(record.num_output_tokens for record in completed)
    figures: Figures = {
        "completed": len(completed),
        "failed": len(records) - len(completed),
        "short_answers": sum(record.num_output_tokens < record.num_wanted_tokens for record in completed),
        "duration": duration,
        "total_input_tokens": num_in,
        "total_cached_tokens": sum(record.num_cached_tokens for record in completed),
        "total_output_tokens": num_out,
        "request_throughput": _rate(len(completed), duration),
        "output_throughput": _rate(num_out, duration),
        "total_token_throughput": _rate(num_in + num_out, duration),
        "max_in_flight": max_in_flight(records),
    }
    if goals:
        figures["request_goodput"] = _rate(sum(meets(record, goals) for record in records), duration)
    for name in latencies:
        values = [value for record in completed for value in LATENCIES[name][1](record)]
        figures |= describe(name, values, percentiles)
    return figures


def max_in_flight(records: Sequence[Record]) -> int:
    """Most requests that were under way at the same time; one that ends when another is sent does not count with it."""
    changes = sorted([(record.finished, -1) for record in records] + [(record.sent, 1) for record in records])
    current = most = 0
    for _, change in changes:
        current += change
        most = max(most, current)
    return most


def _rate(count: float, duration: float) -> float | None:
    return count / duration if duration > 0 else None
