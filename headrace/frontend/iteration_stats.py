"""What one round of outputs was, in numbers: written by the output processor, read by `metrics`."""

from __future__ import annotations

import msgspec

from headrace.contracts.engine import FinishReason


class FinishedRequestStats(msgspec.Struct, frozen=True):
    """One sequence that has ended. Times are in seconds, and None where it has not come so far."""

    finish_reason: FinishReason
    num_prompt_tokens: int
    num_generation_tokens: int
    e2e_latency: float  # since the request arrived
    prefill_time: float | None = None  # from its first start in the engine to its first token
    decode_time: float | None = None  # from the first token to the last


class IterationStats(msgspec.Struct):
    """Times are in seconds."""

    num_prompt_tokens: int = 0  # prompts whose first token came
    num_generation_tokens: int = 0
    times_to_first_token: list[float] = msgspec.field(default_factory=list)
    inter_token_latencies: list[float] = msgspec.field(default_factory=list)
    queue_times: list[float] = msgspec.field(default_factory=list)  # from the engine's queue to the first start
    finished: list[FinishedRequestStats] = msgspec.field(default_factory=list)
