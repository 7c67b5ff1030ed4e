"""Choosing tokens from logits, one row after another, so that a row's token depends on the row alone.

Order and meaning: `model.ops.Sampler.sample`. Probabilities here are not normalised: the most probable token has 1.
Sums are in float64 and in the order of ids.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.backends.numpy.logits import edit_logits
from headrace.backends.numpy.logprobs import gather_logprobs
from headrace.model.ops import SamplerOutput, SamplingInputs

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Ids = NDArray[np.intp]

FIRST_NUCLEUS = 256  # tokens that top_p looks at first; most nuclei are smaller


class NumpySampler:
    def sample(self, logits: Float32, inputs: SamplingInputs) -> SamplerOutput:
        raw = np.where(np.isnan(logits), np.float32(-np.inf), logits)
        edited = edit_logits(raw, inputs)
        tokens = np.argmax(edited, axis=-1).astype(np.int32)
        for row in np.flatnonzero(inputs.temperature > 0):
            if np.isfinite(edited[row, tokens[row]]):
                tokens[row] = sample_row(
                    edited[row],
                    temperature=float(inputs.temperature[row]),
                    top_k=int(inputs.top_k[row]),
                    top_p=float(inputs.top_p[row]),
                    min_p=float(inputs.min_p[row]),
                    uniform=float(inputs.uniform[row]),
                )
        logprobs = None if inputs.logprobs is None else gather_logprobs(raw, tokens, inputs.logprobs)
        return SamplerOutput(tokens, logprobs)


def sample_row(logits: Float32, *, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float) -> int:
    """One token id from logits `[vocab]`, at a temperature above 0. The highest logit must be finite."""
    weights = _weights(logits, temperature)
    ids: Ids | None = None  # ascending ids of what is left; None: all
    if min_p > 0:
        ids = np.flatnonzero(weights >= min_p)
        weights = weights[ids]
    if 0 < top_k < len(weights):
        kept = np.flatnonzero(weights >= np.partition(weights, -top_k)[-top_k])
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    if top_p < 1:
        kept = _nucleus(weights, top_p)
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    place = _draw(weights, uniform)
    return place if ids is None else int(ids[place])


def _weights(logits: Float32, temperature: float) -> Float64:
    """exp((logits - max) / temperature). Subtracted first, so that a tiny temperature does not overflow; in float64, so
    that different logits keep different weights."""
    wide = logits.astype(np.float64)
    return np.exp((wide - wide.max()) / temperature)


def _nucleus(weights: Float64, top_p: float) -> Ids:
    """Ascending places of the fewest weights, largest first and then lowest place, whose sum reaches top_p of all."""
    wanted = top_p * np.cumsum(weights)[-1]
    size = FIRST_NUCLEUS
    while True:
        places = _largest(weights, size)
        sums = np.cumsum(weights[places])
        if sums[-1] >= wanted or len(places) == len(weights):
            return np.sort(places[: np.searchsorted(sums, wanted) + 1])
        size *= 8


def _largest(weights: Float64, size: int) -> Ids:
    """Places of at least the `size` largest weights with all that equal the least of them, in descending order."""
    if size >= len(weights):
        return np.argsort(-weights, kind="stable")
    places = np.flatnonzero(weights >= np.partition(weights, -size)[-size])
    return places[np.argsort(-weights[places], kind="stable")]


def _draw(weights: Float64, uniform: float) -> int:
    """The first place where the running sum exceeds uniform times the whole."""
    sums = np.cumsum(weights)
    return int(np.searchsorted(sums, uniform * sums[-1], side="right"))
