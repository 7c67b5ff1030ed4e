"""From a step's logprobs, as the sampler has them, to the messages of its requests."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.contracts.model_runner import TokenLogprobs
from headrace.model.ops import Logprobs, LogprobsWanted


def token_logprobs(
    req_ids: Sequence[str], wanted: LogprobsWanted | None, found: Logprobs | None
) -> dict[str, TokenLogprobs] | None:
    """By request id; `req_ids` are those of the rows that were sampled. None where no row wants any."""
    if wanted is None or found is None:
        return None
    top_ids, top = found.top_ids.astype("<i4", copy=False), found.top.astype("<f4", copy=False)
    starts = found.top_starts.tolist()
    return {
        req_ids[row]: TokenLogprobs(logprob, rank, top_ids[start:end].tobytes(), top[start:end].tobytes())
        for row, logprob, rank, start, end in zip(
            wanted.rows.tolist(), found.sampled.tolist(), found.ranks.tolist(), starts[:-1], starts[1:], strict=True
        )
    }
