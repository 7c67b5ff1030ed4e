"""What requests change in their logits before a token is chosen: bans, bias, penalties. In float32, as the logits are,
so that every backend finds the same highest logit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.model.ops import Penalties, SamplingInputs

Float32 = NDArray[np.float32]


def edit_logits(logits: Float32, inputs: SamplingInputs) -> Float32:
    """The logits `[num_samples, vocab]` as the rows want them; a copy where any row changes some."""
    allowed, banned, bias, penalties = inputs.allowed, inputs.banned, inputs.bias, inputs.penalties
    if allowed is None and banned is None and bias is None and penalties is None:
        return logits
    logits = logits.copy()
    for place, row in enumerate(logits):
        if allowed is not None:
            _keep_only(row, allowed.of(place))
        if banned is not None:
            row[banned.of(place)] = -np.inf
        if bias is not None:
            row[bias.tokens.of(place)] += bias.values[bias.tokens.starts[place] : bias.tokens.starts[place + 1]]
        if penalties is not None:
            _penalise(row, penalties, place)
    return logits


def _keep_only(row: Float32, ids: NDArray[np.int32]) -> None:
    if len(ids):
        kept = row[ids]
        row[:] = -np.inf
        row[ids] = kept


def _penalise(row: Float32, penalties: Penalties, place: int) -> None:
    start, end = penalties.seen.starts[place : place + 2]
    ids, counts = penalties.seen.ids[start:end], penalties.output_counts[start:end]
    seen, repetition = row[ids], penalties.repetition[place]
    seen = np.where(seen > 0, seen / repetition, seen * repetition)
    seen -= penalties.frequency[place] * counts.astype(np.float32)
    seen -= np.where(counts > 0, penalties.presence[place], np.float32(0))
    row[ids] = seen
