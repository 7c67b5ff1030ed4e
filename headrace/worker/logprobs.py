"""From a step's logprobs, as the sampler has them, to those of messages."""

from __future__ import annotations

from headrace.contracts.model_runner import TokenLogprobs
from headrace.model.ops import Logprobs


def token_logprobs(found: Logprobs) -> list[TokenLogprobs]:
    """One for each row that wanted them, in their order."""
    top_ids, top = found.top_ids.astype("<i4", copy=False), found.top.astype("<f4", copy=False)
    starts = found.top_starts.tolist()
    return [
        TokenLogprobs(logprob, rank, top_ids[start:end].tobytes(), top[start:end].tobytes())
        for logprob, rank, start, end in zip(
            found.sampled.tolist(), found.ranks.tolist(), starts[:-1], starts[1:], strict=True
        )
    ]
