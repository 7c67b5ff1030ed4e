"""`headrace bench throughput` and `latency`: the engine without a server, in this process, by `LLMEngine`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from headrace.bench import workload
from headrace.bench.metrics import percentile, summarize
from headrace.bench.record import Record
from headrace.bench.report import Report, changed_settings, kernels, render_figures, render_spread
from headrace.bench.workload import RandomLengths, TokenIds
from headrace.config.engine_config import EngineConfig
from headrace.contracts.sampling_params import OutputKind, SamplingParams
from headrace.frontend.llm_engine import LLMEngine


class OfflineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and of what. `num_prompts` are one batch."""

    num_prompts: int
    lengths: RandomLengths
    num_warmups: int  # batches of the same size before those that are measured
    num_iterations: int = 1
    prompt_seed: int = 0
    token_ids: tuple[int, int] = (1000, 30000)
    latencies: tuple[str, ...] = ("ttft", "tpot", "itl", "e2el")
    percentiles: tuple[float, ...] = (50.0, 90.0, 99.0)


def bench_throughput(config: EngineConfig, settings: OfflineSettings) -> Report:
    """All prompts at once. Raises `StartupError` or `RequestError`, for prompts that do not fit the model."""
    records = run_batches(config, settings)[0]
    figures = summarize(records, latencies=settings.latencies, percentiles=settings.percentiles)
    return Report(
        benchmark="throughput",
        settings=changed_settings(config) | msgspec.to_builtins(settings),
        kernels="numpy" if config.backend == "numpy" else kernels(),
        results=dict(figures),
        lines=[_title(settings), "", *render_figures(figures, settings.latencies, settings.percentiles)],
        records=records,
    )


def bench_latency(config: EngineConfig, settings: OfflineSettings) -> Report:
    """One batch after another: how long a whole one takes. Raises as `bench_throughput` does."""
    batches = run_batches(config, settings)
    everything = [record for batch in batches for record in batch]
    figures = summarize(everything, latencies=settings.latencies, percentiles=settings.percentiles)
    seconds = [max(record.finished for record in batch) - batch[0].arrival for batch in batches]
    latency: dict[str, Any] = {
        "latencies": seconds,
        "avg_latency": statistics.mean(seconds),
        "percentiles": {f"{p:g}": percentile(sorted(seconds), p) for p in settings.percentiles},
    }
    table = render_spread("seconds for a batch", latency["avg_latency"], latency["percentiles"])
    return Report(
        benchmark="latency",
        settings=changed_settings(config) | msgspec.to_builtins(settings),
        kernels="numpy" if config.backend == "numpy" else kernels(),
        results=figures | latency,
        lines=[_title(settings), "", *table, "", *render_figures(figures, settings.latencies, settings.percentiles)],
        records=everything,
    )


def run_batches(config: EngineConfig, settings: OfflineSettings) -> list[list[Record]]:
    """The records of each measured batch. Every prompt is a new one."""
    rng = np.random.default_rng([settings.prompt_seed, 0])
    engine = LLMEngine(config=config)
    try:
        batches = [
            run_batch(engine, workload.random_ids(settings.num_prompts, settings.lengths, settings.token_ids, rng))
            for _ in range(settings.num_warmups + settings.num_iterations)
        ]
        return batches[settings.num_warmups :]
    finally:
        engine.shutdown()


def run_batch(engine: LLMEngine, asks: Sequence[tuple[TokenIds, int]]) -> list[Record]:
    """Add all requests and step until they are over."""
    prepared = [
        engine.prepare(str(place), prompt, sampling_params(num_output_tokens))
        for place, (prompt, num_output_tokens) in enumerate(asks)
    ]
    began = time.perf_counter()
    records = {
        request.label: Record(began, began, num_wanted_tokens=num_output_tokens)
        for request, (_, num_output_tokens) in zip(prepared, asks, strict=True)
    }
    for request in prepared:
        engine.add_prepared(request)
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter()
        for output in outputs:
            if output.error is not None:
                raise output.error
            record, (choice,) = records[output.request_id], output.outputs
            record.num_output_tokens += len(choice.token_ids)
            if choice.token_ids:
                record.text_times.append(now)
            if output.finished:
                record.finished = now
                record.num_prompt_tokens = len(output.prompt_token_ids)
                record.num_cached_tokens = output.num_cached_tokens
                record.finish_reason = choice.finish_reason
    return list(records.values())


def sampling_params(num_output_tokens: int) -> SamplingParams:
    """Greedy, and to the last token that was asked for."""
    return SamplingParams(max_tokens=num_output_tokens, ignore_eos=True, temperature=0.0, output_kind=OutputKind.DELTA)


def _title(settings: OfflineSettings) -> str:
    lengths = settings.lengths
    what = f"{settings.num_prompts} prompts of {lengths.prefix_len + lengths.input_len} tokens"
    times = f"; {settings.num_iterations} times" if settings.num_iterations > 1 else ""
    return f"{what}, answers of {lengths.output_len} tokens{times}; seed {settings.prompt_seed}"
