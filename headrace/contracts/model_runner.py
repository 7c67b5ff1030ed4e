"""Worker (C) to engine core (B): what a step found."""

from __future__ import annotations

import struct

import msgspec


class TokenLogprobs(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """The logprob of a token that was sampled or is in the prompt, and the most probable tokens at its place.

    Logprobs are the log-softmax of what the model gave, before bias, penalties and temperature.
    """

    logprob: float
    rank: int  # how many tokens are at least as probable, itself included: 1 is the most probable
    top_ids: bytes = b""  # int32, little-endian, the most probable first
    top_logprobs: bytes = b""  # float32, little-endian, beside them

    @property
    def top(self) -> list[tuple[int, float]]:
        """The most probable tokens as (id, logprob)."""
        num_top = len(self.top_ids) // 4
        ids = struct.unpack(f"<{num_top}i", self.top_ids)
        return list(zip(ids, struct.unpack(f"<{num_top}f", self.top_logprobs), strict=True))


class ModelRunnerOutput(msgspec.Struct, array_like=True, gc=False):
    """The requests that sampled in this step, one token each. Requests in the middle of a prompt are not named, but for
    their prompt's logprobs."""

    req_ids: list[str]
    sampled_token_ids: list[int]
    logprobs: dict[str, TokenLogprobs] | None = None  # of the requests that want any; None: of nobody
    # Likewise, of those tokens of a prompt that follow one which this step has computed, in their order.
    prompt_logprobs: dict[str, list[TokenLogprobs]] | None = None
