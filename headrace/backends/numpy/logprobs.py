"""Log-probabilities of sampled tokens and of the most probable ones, from raw logits. Sums in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.model.ops import Logprobs, LogprobsWanted

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]


def gather_logprobs(logits: Float32, tokens: Int32, wanted: LogprobsWanted) -> Logprobs:
    """logits `[num_samples, vocab]`, without NaN, and the tokens chosen from them `[num_samples]`."""
    num_top = np.minimum(wanted.num_top, logits.shape[1])
    top_starts = np.concatenate([[0], np.cumsum(num_top)]).astype(np.int32)
    found = Logprobs(
        sampled=np.empty(len(wanted.rows), np.float32),
        ranks=np.empty(len(wanted.rows), np.int32),
        top_starts=top_starts,
        top_ids=np.empty(top_starts[-1], np.int32),
        top=np.empty(top_starts[-1], np.float32),
    )
    for place, row in enumerate(wanted.rows):
        token, row_logits = tokens[row], logits[row]
        logprobs = _log_softmax(row_logits)
        found.sampled[place] = logprobs[token]
        found.ranks[place] = np.count_nonzero(row_logits >= row_logits[token])
        top = slice(top_starts[place], top_starts[place + 1])
        found.top_ids[top] = np.argsort(-row_logits, kind="stable")[: num_top[place]]
        found.top[top] = logprobs[found.top_ids[top]]
    return found


def _log_softmax(logits: Float32) -> Float64:
    """Not a number where the highest logit is not finite."""
    wide = logits.astype(np.float64)
    highest = wide.max()
    if not np.isfinite(highest):
        return np.full_like(wide, np.nan)
    return wide - highest - np.log(np.exp(wide - highest).sum())
