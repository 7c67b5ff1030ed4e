"""The names, types, labels and buckets of all metrics: dashboards and routers stand on them (case J13)."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

# What dashboards and routers read. A change here breaks somebody's.
MODEL = ("model_name",)
METRICS = {
    "headrace:num_requests_running": ("gauge", MODEL),
    "headrace:num_requests_waiting": ("gauge", MODEL),
    "headrace:kv_cache_usage_perc": ("gauge", MODEL),
    "headrace:prefix_cache_queries_total": ("counter", MODEL),
    "headrace:prefix_cache_hits_total": ("counter", MODEL),
    "headrace:num_preemptions_total": ("counter", MODEL),
    "headrace:prompt_tokens_total": ("counter", MODEL),
    "headrace:generation_tokens_total": ("counter", MODEL),
    "headrace:request_success_total": ("counter", ("finished_reason", *MODEL)),
    "headrace:time_to_first_token_seconds": ("histogram", MODEL),
    "headrace:inter_token_latency_seconds": ("histogram", MODEL),
    "headrace:request_time_per_output_token_seconds": ("histogram", MODEL),
    "headrace:e2e_request_latency_seconds": ("histogram", MODEL),
    "headrace:request_queue_time_seconds": ("histogram", MODEL),
    "headrace:request_inference_time_seconds": ("histogram", MODEL),
    "headrace:request_prefill_time_seconds": ("histogram", MODEL),
    "headrace:request_decode_time_seconds": ("histogram", MODEL),
    "headrace:request_prompt_tokens": ("histogram", MODEL),
    "headrace:request_generation_tokens": ("histogram", MODEL),
}
FINISHED_REASONS = {"stop", "length", "abort", "error"}
TO_FIRST_TOKEN = (
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 160.0 640.0 2560.0 +Inf"
)
BETWEEN_TOKENS = (
    "0.001 0.0025 0.005 0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 +Inf"
)
OF_A_REQUEST = (
    "0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0 120.0 240.0 480.0 960.0 1920.0 7680.0 +Inf"
)
OF_TOKENS = "1.0 2.0 5.0 10.0 20.0 50.0 100.0 200.0 +Inf"  # with a context of 256 tokens
BUCKETS = {
    "headrace:time_to_first_token_seconds": TO_FIRST_TOKEN,
    "headrace:inter_token_latency_seconds": BETWEEN_TOKENS,
    "headrace:request_time_per_output_token_seconds": BETWEEN_TOKENS,
    "headrace:e2e_request_latency_seconds": OF_A_REQUEST,
    "headrace:request_queue_time_seconds": OF_A_REQUEST,
    "headrace:request_inference_time_seconds": OF_A_REQUEST,
    "headrace:request_prefill_time_seconds": OF_A_REQUEST,
    "headrace:request_decode_time_seconds": OF_A_REQUEST,
    "headrace:request_prompt_tokens": OF_TOKENS,
    "headrace:request_generation_tokens": OF_TOKENS,
}


@dataclass
class Described:
    metrics: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)  # type and labels by name
    buckets: dict[str, str] = field(default_factory=dict)
    finished_reasons: set[str] = field(default_factory=set)


AS_EVER = Described(METRICS, BUCKETS, FINISHED_REASONS)


def described(text: str, model_name: str) -> Described:
    """What Prometheus reads in an answer of /metrics."""
    found = Described()
    bounds: dict[str, list[str]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            is_histogram = family.type == "histogram"
            name = family.name if is_histogram else sample.name
            found.metrics[name] = (family.type, tuple(sorted(sample.labels.keys() - {"le"})))
            assert sample.labels["model_name"] == model_name
            if sample.name.endswith("_bucket"):
                bounds.setdefault(name, []).append(sample.labels["le"])
            if "finished_reason" in sample.labels:
                found.finished_reasons.add(sample.labels["finished_reason"])
    found.buckets = {name: " ".join(places) for name, places in bounds.items()}
    return found
