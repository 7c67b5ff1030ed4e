"""A report as a picture. Needs matplotlib, which the extra `bench` brings; nothing else of headrace does."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.bench.metrics import LATENCIES
from headrace.bench.record import Record
from headrace.bench.report import Report
from headrace.errors import ConfigError


def check_can_plot() -> None:
    """Raises `ConfigError` where matplotlib is missing: before the run, not after it."""
    if not find_spec("matplotlib"):
        raise ConfigError(
            "matplotlib, which draws it, is not installed; `pip install 'headrace[bench]'` brings it", flag="--plot"
        )


def draw(report: Report, path: Path) -> None:
    """Write a PNG: for requests how each latency is distributed, and when what came; for starts their phases."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    title = [f"headrace bench {report.benchmark}, {report.date}", *report.lines[: report.lines.index("")]]
    figure.suptitle("\n".join(title), fontsize=9)
    completed = [record for record in report.records if record.is_completed]
    if report.benchmark == "startup":
        _draw_phases(figure.subplots(), report.results["phases"])
    else:
        times, *distributions = figure.subplots(2, 2).flat
        began = min(record.arrival for record in report.records)
        _draw_times(times, completed, [record for record in report.records if not record.is_completed], began)
        for axes, names in zip(distributions, (["ttft", "e2el"], ["tpot"], ["itl"]), strict=True):
            _draw_distributions(axes, completed, names)
    figure.savefig(path, format="png", dpi=110)


def _draw_times(axes: Any, completed: Sequence[Record], failed: Sequence[Record], began: float) -> None:
    """Time to first token and latency over the arrival."""
    arrivals = [record.arrival - began for record in completed]
    axes.scatter(arrivals, [record.e2el for record in completed], s=8, label="E2EL")
    axes.scatter(arrivals, [record.ttft for record in completed], s=8, label="TTFT")
    if failed:
        axes.scatter(
            [record.arrival - began for record in failed], [0] * len(failed), s=16, marker="x", c="r", label="failed"
        )
    axes.set(title="requests by their arrival", xlabel="arrival, s", ylabel="s")
    axes.legend()


def _draw_distributions(axes: Any, completed: Sequence[Record], names: Sequence[str]) -> None:
    """For each latency, which share of its values is below."""
    for name in names:
        values = sorted(value * 1e3 for record in completed for value in LATENCIES[name][1](record))
        shares = [(place + 1) / len(values) for place in range(len(values))]
        axes.step(values, shares, where="post", label=f"{name.upper()}, {LATENCIES[name][0]}")
    axes.set(xlabel="ms", ylabel="share of values", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")


def _draw_phases(axes: Any, phases: Sequence[dict[str, Any]]) -> None:
    """From when to when each phase went, in medians."""
    names = [f"{phase['process']}: {phase['phase']}" for phase in phases]
    axes.barh(names, [phase["took"] for phase in phases], left=[phase["began"] for phase in phases])
    axes.invert_yaxis()
    axes.set(xlabel="seconds after the launcher began")
