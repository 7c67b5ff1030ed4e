"""What Prometheus gets to see. Names are vLLM's with our prefix, so that dashboards move by one replace.

Recording is plain arithmetic on numbers of our own, once for each message of the engine core; `prometheus_client` is
imported, and its objects are made, only when somebody asks for /metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from headrace.contracts.engine import FinishReason
from headrace.contracts.stats import SchedulerStats
from headrace.frontend.iteration_stats import FinishedRequestStats, IterationStats

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # of what `render` returns

_TIME_TO_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_INTER_TOKEN_LATENCY = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_REQUEST_LATENCY = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip


class Histogram:
    """Counts of observations by upper bound. An observation costs a fraction of a microsecond."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last is for what is above every bound
        self.total = 0.0

    def observe(self, values: Iterable[float]) -> None:
        for value in values:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.total += value


class Metrics:
    """All numbers of one API process, and the text that Prometheus reads."""

    def __init__(self, model_name: str, max_model_len: int) -> None:
        self._model_name = model_name
        self._scheduler = SchedulerStats()
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._finished = dict.fromkeys(FinishReason, 0)
        self._time_to_first_token = Histogram(_TIME_TO_FIRST_TOKEN)
        self._inter_token_latency = Histogram(_INTER_TOKEN_LATENCY)
        self._queue_time = Histogram(_REQUEST_LATENCY)
        self._e2e_latency = Histogram(_REQUEST_LATENCY)
        self._prefill_time = Histogram(_REQUEST_LATENCY)
        self._decode_time = Histogram(_REQUEST_LATENCY)
        self._inference_time = Histogram(_REQUEST_LATENCY)
        self._time_per_output_token = Histogram(_INTER_TOKEN_LATENCY)
        token_bounds = _one_two_five(max_model_len)
        self._request_prompt_tokens = Histogram(token_bounds)
        self._request_generation_tokens = Histogram(token_bounds)

    def record_scheduler(self, stats: SchedulerStats) -> None:
        self._scheduler = stats

    def record_iteration(self, stats: IterationStats) -> None:
        self._num_prompt_tokens += stats.num_prompt_tokens
        self._num_generation_tokens += stats.num_generation_tokens
        self._time_to_first_token.observe(stats.times_to_first_token)
        self._inter_token_latency.observe(stats.inter_token_latencies)
        self._queue_time.observe(stats.queue_times)
        for request in stats.finished:
            self._finished[request.finish_reason] += 1
            self._record_times(request)
            self._request_prompt_tokens.observe((request.num_prompt_tokens,))
            self._request_generation_tokens.observe((request.num_generation_tokens,))

    def _record_times(self, request: FinishedRequestStats) -> None:
        self._e2e_latency.observe((request.e2e_latency,))
        if request.decode_time is None:
            return  # it got no token
        self._decode_time.observe((request.decode_time,))
        if request.num_generation_tokens > 1:
            self._time_per_output_token.observe((request.decode_time / (request.num_generation_tokens - 1),))
        if request.prefill_time is not None:
            self._prefill_time.observe((request.prefill_time,))
            self._inference_time.observe((request.prefill_time + request.decode_time,))

    @property
    def scheduler(self) -> SchedulerStats:
        """The engine's latest."""
        return self._scheduler

    @property
    def totals(self) -> tuple[int, int, int, int]:
        """Since the start: prompt tokens, generated tokens, prompt tokens looked up in the prefix cache, and found."""
        stats = self._scheduler
        return self._num_prompt_tokens, self._num_generation_tokens, stats.prefix_cache_queries, stats.prefix_cache_hits

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus_client's registry."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        stats = self._scheduler
        for name, documentation, value in (
            ("num_requests_running", "Requests that take part in the engine's steps.", stats.num_running_reqs),
            ("num_requests_waiting", "Requests that wait for their turn.", stats.num_waiting_reqs),
            ("kv_cache_usage_perc", "KV cache in use; 1 is all of it.", stats.kv_cache_usage),
        ):
            gauge = GaugeMetricFamily(f"headrace:{name}", documentation, labels=["model_name"])
            gauge.add_metric([self._model_name], value)
            yield gauge

    def _counters(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        stats = self._scheduler
        for name, documentation, value in (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_cache_queries),
            ("prefix_cache_hits", "Prompt tokens that the prefix cache had.", stats.prefix_cache_hits),
            ("num_preemptions", "Times that a running request had to give up its KV blocks.", stats.num_preemptions),
            ("prompt_tokens", "Prompt tokens of requests that got their first token.", self._num_prompt_tokens),
            ("generation_tokens", "Tokens generated.", self._num_generation_tokens),
        ):
            counter = CounterMetricFamily(f"headrace:{name}", documentation, labels=["model_name"])
            counter.add_metric([self._model_name], value)
            yield counter
        success = CounterMetricFamily(
            "headrace:request_success", "Requests that have ended.", labels=["model_name", "finished_reason"]
        )
        for reason, count in self._finished.items():
            success.add_metric([self._model_name, reason.text], count)
        yield success

    def _histograms(self) -> Iterator[Metric]:
        from prometheus_client.core import HistogramMetricFamily

        for name, documentation, histogram in (
            ("time_to_first_token_seconds", "From arrival to the first token.", self._time_to_first_token),
            ("inter_token_latency_seconds", "From one token to the next.", self._inter_token_latency),
            ("request_queue_time_seconds", "From the engine's queue to the first start.", self._queue_time),
            ("request_prefill_time_seconds", "From the first start to the first token.", self._prefill_time),
            ("request_decode_time_seconds", "From the first token to the last.", self._decode_time),
            ("request_inference_time_seconds", "From the first start to the last token.", self._inference_time),
            ("request_time_per_output_token_seconds", "Mean time between tokens.", self._time_per_output_token),
            ("e2e_request_latency_seconds", "From arrival to the end.", self._e2e_latency),
            ("request_prompt_tokens", "Prompt tokens of a request.", self._request_prompt_tokens),
            ("request_generation_tokens", "Tokens generated for a request.", self._request_generation_tokens),
        ):
            family = HistogramMetricFamily(f"headrace:{name}", documentation, labels=["model_name"])
            bounds = [*map(str, histogram.bounds), "+Inf"]
            buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
            family.add_metric([self._model_name], buckets=buckets, sum_value=histogram.total)
            yield family


def _one_two_five(limit: int) -> list[float]:
    """1, 2, 5, 10, 20, 50, ... up to `limit`."""
    bounds: list[float] = []
    power = 1
    while power <= limit:
        bounds += [float(power * step) for step in (1, 2, 5) if power * step <= limit]
        power *= 10
    return bounds
