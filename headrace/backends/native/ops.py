"""The op set computed at once, for tests and for a look inside: each call is a tape of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.backends.native.extension import native
from headrace.backends.native.graph import AttentionMemory, Buffers, Capacity, choose_types, stride_of, write_tape
from headrace.backends.native.memory import NativeMatrix, NativeMemory, NativeVector, RopeTable
from headrace.backends.native.recorder import RecordedStep, Recorder, Value, View
from headrace.model.ops import ActivationName, AttentionSpec, StepInputs

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]

_NO_ROWS = np.empty(0, np.int32)


@dataclass(frozen=True)
class NativeStep:
    inputs: StepInputs

    @property
    def token_ids(self) -> Int32:
        return self.inputs.token_ids

    @property
    def sample_rows(self) -> Int32:
        return self.inputs.sample_rows


class NativeOps:
    def __init__(self, memory: NativeMemory, pool: native.Pool, kernels: str) -> None:
        self._memory = memory
        self._pool = pool
        self._kernels = kernels

    def embed(self, token_ids: Int32, table: NativeMatrix) -> Float32:
        inputs = _rows_only(len(token_ids), token_ids=np.ascontiguousarray(token_ids))
        return self._compute([], inputs, lambda ops, _: ops.embed("", table))

    def rms_norm(self, x: Float32, weight: NativeVector, eps: float) -> Float32:
        return self._compute([x], _rows_only(len(x)), lambda ops, views: ops.rms_norm(views[0], weight, eps))

    def rms_residual(self, x: Float32, weight: NativeVector, eps: float, residual: Float32) -> Float32:
        return self._compute(
            [x, residual], _rows_only(len(x)), lambda ops, views: ops.rms_residual(views[0], weight, eps, views[1])
        )

    def linear(self, x: Float32, weight: NativeMatrix) -> Float32:
        return self._compute([x], _rows_only(len(x)), lambda ops, views: ops.linear(views[0], weight))

    def linear_residual(self, x: Float32, weight: NativeMatrix, residual: Float32) -> Float32:
        return self._compute(
            [x, residual], _rows_only(len(x)), lambda ops, views: ops.linear_residual(views[0], weight, views[1])
        )

    def gated_mlp(self, x: Float32, gate_up: NativeMatrix, activation: ActivationName) -> Float32:
        return self._compute([x], _rows_only(len(x)), lambda ops, views: ops.gated_mlp(views[0], gate_up, activation))

    def split(self, x: Float32, widths: Sequence[int]) -> tuple[Float32, ...]:
        return tuple(np.split(x, np.cumsum(widths)[:-1], axis=1))

    def rope(self, x: Float32, table: RopeTable, step: NativeStep) -> Float32:
        return self._compute([x], step.inputs, lambda ops, views: ops.rope(views[0], table, RecordedStep()))

    def paged_attention(
        self, q: Float32, k: Float32, v: Float32, attention: AttentionSpec, step: NativeStep
    ) -> Float32:
        return self._compute(
            [q, k, v],
            step.inputs,
            lambda ops, views: ops.paged_attention(views[0], views[1], views[2], attention, RecordedStep()),
            [attention],
        )

    def take_rows(self, x: Float32, rows: Int32) -> Float32:
        inputs = _rows_only(len(x), sample_rows=np.ascontiguousarray(rows))
        return self._compute([x], inputs, lambda ops, views: ops.take_rows(views[0], ""))

    def scale(self, x: Float32, factor: float) -> Float32:
        return self._compute([x], _rows_only(len(x)), lambda ops, views: ops.scale(views[0], factor))

    def softcap(self, x: Float32, cap: float) -> Float32:
        return self._compute([x], _rows_only(len(x)), lambda ops, views: ops.softcap(views[0], cap))

    def _compute(
        self,
        arrays: Sequence[Float32],
        inputs: StepInputs,
        program: Callable[[Recorder, list[View]], View],
        layers: Sequence[AttentionSpec] = (),
    ) -> Float32:
        recorder = Recorder(self._memory)
        views = [recorder.value(native.Rows.tokens, array.shape[1]) for array in arrays]
        out = recorder.settle(program(recorder, views))
        entries = choose_types(recorder.entries, rounds_rows=native.rounds_rows(self._kernels))
        # The last op's result would be bfloat16 only if a product read it, and none does.
        num_tokens, num_samples = len(inputs.token_ids), len(inputs.sample_rows)
        buffers = Buffers(entries, Capacity(num_tokens, num_samples, 0), kept=[out.value])
        sources = [_copy_rows(view.value, array) for view, array in zip(views, arrays, strict=True)]
        for view, source in zip(views, sources, strict=True):
            buffers.put(view.value, source.address)
        longest = int(inputs.context_lens.max(initial=0))
        attention = AttentionMemory(layers, num_tokens, longest, self._pool.num_threads)
        tape = native.Tape(self._pool, self._kernels)
        write_tape(tape, entries, buffers, attention)
        tape.replay(
            inputs.token_ids, inputs.positions, inputs.slots, inputs.query_starts, inputs.context_lens,
            np.ascontiguousarray(inputs.block_tables), inputs.sample_rows,
        )  # fmt: skip
        num_rows = num_samples if out.rows == native.Rows.samples else num_tokens
        return buffers.rows(out, num_rows).copy()


def _copy_rows(value: Value, array: Float32) -> native.Buffer:
    """The array with the stride that kernels expect."""
    stride = stride_of(value)
    buffer = native.Buffer(4 * stride * len(array) + 64)
    rows = buffer.array().view(np.float32)[: stride * len(array)].reshape(len(array), stride)
    rows[:, : array.shape[1]] = array
    return buffer


def _rows_only(num_tokens: int, *, token_ids: Int32 | None = None, sample_rows: Int32 = _NO_ROWS) -> StepInputs:
    """A step for ops that look at rows alone."""
    zeros = np.zeros(num_tokens, np.int32)
    return StepInputs(
        token_ids=zeros if token_ids is None else token_ids,
        positions=zeros,
        slots=zeros,
        query_starts=np.zeros(1, np.int32),
        context_lens=_NO_ROWS,
        block_tables=np.empty((0, 0), np.int32),
        sample_rows=sample_rows,
    )
