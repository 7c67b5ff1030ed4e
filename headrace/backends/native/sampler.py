"""Choosing tokens in native code: the same definition as `model.ops.Sampler`, a row for a thread at a time."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.backends.native.extension import native
from headrace.backends.native.graph import Logits
from headrace.model.ops import Logprobs, LogprobsWanted, SamplerOutput, SamplingInputs

Float32 = NDArray[np.float32]


class NativeSampler:
    def __init__(self, pool: native.Pool, kernels: str) -> None:
        self._pool = pool
        self._kernels = kernels

    def sample(self, logits: Logits | Float32, inputs: SamplingInputs) -> SamplerOutput:
        """The logits of a replayed step are computed here, a chunk at a time."""
        source = logits if isinstance(logits, Logits) else _GivenLogits(logits, self._pool, self._kernels)
        tokens = np.empty(len(inputs.temperature), np.int32)
        batch = native.SampleBatch(
            temperature=inputs.temperature,
            top_k=inputs.top_k,
            top_p=inputs.top_p,
            min_p=inputs.min_p,
            uniform=inputs.uniform,
            tokens=tokens,
        )
        if inputs.allowed is not None:
            batch.allow(inputs.allowed.starts, inputs.allowed.ids)
        if inputs.banned is not None:
            batch.ban(inputs.banned.starts, inputs.banned.ids)
        if inputs.bias is not None:
            batch.bias(inputs.bias.tokens.starts, inputs.bias.tokens.ids, inputs.bias.values)
        if inputs.penalties is not None:
            of = inputs.penalties
            batch.penalise(of.seen.starts, of.seen.ids, of.output_counts, of.repetition, of.presence, of.frequency)
        logprobs = None
        if inputs.logprobs is not None:
            logprobs = _room_for_logprobs(inputs.logprobs, source.vocab_size)
            batch.want_logprobs(
                inputs.logprobs.rows,
                logprobs.top_starts,
                logprobs.sampled,
                logprobs.ranks,
                logprobs.top_ids,
                logprobs.top,
            )
        for first, last in source.chunks():
            source.compute(first, last, batch)
        return SamplerOutput(tokens, logprobs)


class _Source(Protocol):
    vocab_size: int

    def chunks(self) -> list[tuple[int, int]]: ...
    def compute(self, first: int, last: int, batch: native.SampleBatch | None = None) -> Float32: ...


class _GivenLogits:
    """Logits that somebody has computed already."""

    def __init__(self, logits: Float32, pool: native.Pool, kernels: str) -> None:
        self._logits = np.ascontiguousarray(logits)
        self.vocab_size = logits.shape[1]
        self._tape = native.Tape(pool, kernels)
        self._tape.sample(logits=self._logits.ctypes.data, stride=self.vocab_size, vocab=self.vocab_size)

    def chunks(self) -> list[tuple[int, int]]:
        return [(0, len(self._logits))]

    def compute(self, first: int, last: int, batch: native.SampleBatch | None = None) -> Float32:
        self._tape.replay_samples(first, last - first, batch)
        return self._logits


def _room_for_logprobs(wanted: LogprobsWanted, vocab_size: int) -> Logprobs:
    top_starts = np.zeros(len(wanted.rows) + 1, np.int32)
    np.cumsum(np.minimum(wanted.num_top, vocab_size), out=top_starts[1:])
    return Logprobs(
        sampled=np.empty(len(wanted.rows), np.float32),
        ranks=np.empty(len(wanted.rows), np.int32),
        top_starts=top_starts,
        top_ids=np.empty(top_starts[-1], np.int32),
        top=np.empty(top_starts[-1], np.float32),
    )
