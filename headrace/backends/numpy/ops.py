"""The op set on numpy arrays, computed at once. Formulas and shapes: `model.ops.Ops`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headrace.backends.numpy import linear
from headrace.backends.numpy.attention import Unit, attend, plan_units, softcap
from headrace.backends.numpy.blas import Blas
from headrace.backends.numpy.memory import Matrix, NumpyMemory, RopeTable
from headrace.backends.numpy.threads import ThreadPool
from headrace.model.ops import ActivationName, AttentionSpec, StepInputs

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]


@dataclass
class NumpyStep:
    """A step's inputs, with what is derived from them once for all layers."""

    inputs: StepInputs
    block_size: int
    num_threads: int
    units_by_window: dict[int | None, list[Unit]] = field(default_factory=dict)
    # id of a rope table -> its rows for this step's positions
    rotations: dict[int, tuple[Float32, Float32]] = field(default_factory=dict)

    @property
    def token_ids(self) -> Int32:
        return self.inputs.token_ids

    @property
    def sample_rows(self) -> Int32:
        return self.inputs.sample_rows

    def units(self, window: int | None) -> list[Unit]:
        units = self.units_by_window.get(window)
        if units is None:
            units = plan_units(self.inputs, self.block_size, self.num_threads, window)
            self.units_by_window[window] = units
        return units

    def rotation(self, table: RopeTable) -> tuple[Float32, Float32]:
        """cos [n, 1, 1, dim / 2], and sin with both its signs [n, 1, 2, dim / 2]."""
        rows = self.rotations.get(id(table))
        if rows is None:
            positions = self.inputs.positions
            sin = table.sin[positions]
            rows = table.cos[positions][:, None, None], np.stack((-sin, sin), axis=1)[:, None]
            self.rotations[id(table)] = rows
        return rows


class NumpyOps:
    def __init__(self, memory: NumpyMemory, pool: ThreadPool, blas: Blas) -> None:
        self._memory = memory
        self._pool = pool
        self._blas = blas

    def embed(self, token_ids: Int32, table: Matrix) -> Float32:
        return table.rows[token_ids]

    def rms_norm(self, x: Float32, weight: Float32, eps: float) -> Float32:
        runs = x.reshape(len(x), x.shape[1] // len(weight), len(weight))
        mean = np.matmul(runs[..., None, :], runs[..., None])[..., 0]  # of squares: a dot product of each run
        mean /= np.float32(len(weight))
        mean += np.float32(eps)
        out = np.divide(runs, np.sqrt(mean, out=mean), dtype=np.float32)
        out *= weight
        return out.reshape(x.shape)

    def rms_residual(self, x: Float32, weight: Float32, eps: float, residual: Float32) -> Float32:
        out = self.rms_norm(x, weight, eps)
        out += residual
        return out

    def linear(self, x: Float32, weight: Matrix) -> Float32:
        out = linear.multiply(x, weight, self._pool, self._blas)
        if weight.bias is not None:
            out += weight.bias
        return out

    def linear_residual(self, x: Float32, weight: Matrix, residual: Float32) -> Float32:
        out = self.linear(x, weight)
        out += residual
        return out

    def gated_mlp(self, x: Float32, gate_up: Matrix, activation: ActivationName) -> Float32:
        finish = _ACTIVATIONS[activation]
        gate, up = gate_up.halves()
        if len(x) == 1:
            gated = linear.multiply(x, gate, self._pool, self._blas)
            finish(gated, linear.multiply(x, up, self._pool, self._blas))
            return gated
        out = np.empty((len(x), len(gate.rows)), np.float32)

        def compute(part: range) -> None:
            """One thread's columns, from the products to the result."""
            gated = out[:, linear.columns(gate, part)]
            upper = np.empty(gated.shape, np.float32)
            linear.multiply_panels(x, gate, part, gated)
            linear.multiply_panels(x, up, part, upper)
            finish(gated, upper)

        self._pool.run([partial(compute, part) for part in linear.divide(gate, 2 * len(x), self._pool.num_threads)])
        return out

    def split(self, x: Float32, widths: Sequence[int]) -> tuple[Float32, ...]:
        pieces, start = [], 0
        for width in widths:
            pieces.append(x[:, start : start + width])
            start += width
        return tuple(pieces)

    def rope(self, x: Float32, table: RopeTable, step: NumpyStep) -> Float32:
        cos, sin = step.rotation(table)
        half = table.cos.shape[-1]
        heads = x.reshape(len(x), x.shape[1] // (2 * half), 2, half)
        out = heads * cos
        out += heads[:, :, ::-1] * sin  # the halves change places: (b, a) times (-sin, sin)
        return out.reshape(x.shape)

    def paged_attention(self, q: Float32, k: Float32, v: Float32, attention: AttentionSpec, step: NumpyStep) -> Float32:
        cache = self._memory.kv_caches[attention.layer]
        cache.write(step.inputs.slots, k, v, attention.head_dim)
        return attend(q, cache, attention, step.units(attention.window), self._memory.block_size, self._pool)

    def take_rows(self, x: Float32, rows: Int32) -> Float32:
        return x[rows]

    def scale(self, x: Float32, factor: float) -> Float32:
        return x * np.float32(factor)

    def softcap(self, x: Float32, cap: float) -> Float32:
        return softcap(x, cap)


def _silu_times(gate: Float32, up: Float32) -> None:
    """gate becomes silu(gate) * up. exp may overflow to infinity, and then the result is zero, as it should be."""
    with np.errstate(over="ignore"):
        denominator = np.exp(-gate)
    denominator += np.float32(1)
    np.divide(gate, denominator, out=gate)
    gate *= up


def _gelu_tanh_times(gate: Float32, up: Float32) -> None:
    """gate becomes gelu_tanh(gate) * up. 1 + tanh(u) is 2 / (1 + exp(-2u)), which loses nothing where tanh(u) is near
    -1, and exp may overflow as above."""
    with np.errstate(over="ignore"):
        denominator = gate * gate * gate
        denominator *= np.float32(0.044715)
        denominator += gate
        denominator *= np.float32(-2 * math.sqrt(2 / math.pi))
        np.exp(denominator, out=denominator)
    denominator += np.float32(1)
    np.divide(gate, denominator, out=gate)
    gate *= up


_ACTIVATIONS: dict[ActivationName, Callable[[Float32, Float32], None]] = {
    "silu": _silu_times,
    "gelu_tanh": _gelu_tanh_times,
}
