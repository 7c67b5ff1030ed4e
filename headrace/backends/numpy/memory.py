"""Weights and KV cache as arrays, and how many bytes they take."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.backends.numpy.dequantize import dequantize_into
from headrace.backends.numpy.kv_types import KV_TYPES, KVType
from headrace.model.ops import AttentionSpec, StepShape, StoredTensor

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
FLOAT_BYTES = 4
LINE_FLOATS = 16  # in a cache line

# A panel, the rows of a matrix that are multiplied while they are in the L2 cache, has a multiple of PANEL_STEP rows,
# at most MAX_PANEL_ROWS, of together at most PANEL_BYTES; docs/adr/0001 has the measurements.
PANEL_STEP = 16
MAX_PANEL_ROWS = 96
PANEL_BYTES = 300_000

# Attention reads keys and values in tiles of so many positions, and cuts a step into units no larger than this.
TILE = 64
MAX_UNIT_PAIRS = 1024  # pairs of a row and a tile, where a unit can be cut
MIN_UNIT_ROWS = 16  # of one request, so that gathering keys stays cheap beside using them


@dataclass(frozen=True)
class Matrix:
    """A weight matrix, cut into panels. The cut, and with it the bits of a product, depends on its size alone."""

    rows: Float32  # [out, in]
    bias: Float32 | None = None  # [out], for `linear` to add

    @property
    def panel_rows(self) -> int:
        steps = PANEL_BYTES // (self.rows.shape[1] * FLOAT_BYTES * PANEL_STEP)
        return min(MAX_PANEL_ROWS, max(1, steps) * PANEL_STEP)

    @property
    def num_panels(self) -> int:
        return self.rows.shape[0] // self.panel_rows

    def panels(self, part: range) -> Float32:
        """[len(part), panel_rows, in]: a view of consecutive panels."""
        start, stop = part.start * self.panel_rows, part.stop * self.panel_rows
        return self.rows[start:stop].reshape(len(part), self.panel_rows, self.rows.shape[1])

    def halves(self) -> tuple[Matrix, Matrix]:
        """The first and the second half of the rows, as matrices of their own: views."""
        middle = len(self.rows) // 2
        return Matrix(self.rows[:middle]), Matrix(self.rows[middle:])


@dataclass(frozen=True)
class RopeTable:
    """cos and sin of every angle, each [num_positions, dim / 2]; computed in float64 and rounded once."""

    cos: Float32
    sin: Float32


@dataclass(frozen=True)
class KVCache:
    """Keys and values of one layer, each [num_kv_heads, num_blocks, block_size * head_dim].

    Heads are outermost so that a block of one head is contiguous and a request's blocks are gathered by one `take`.
    """

    keys: Float32
    values: Float32

    def write(self, slots: NDArray[np.int32], k: Float32, v: Float32, head_dim: int) -> None:
        """Store keys and values of n tokens, each [n, num_kv_heads * head_dim], in slots [n]."""
        for cache, new in ((self.keys, k), (self.values, v)):
            _by_slot(cache, head_dim)[:, slots] = _heads(new, len(cache))


@dataclass(frozen=True)
class QuantizedKVCache:
    """The same in 8 bits, beside their scales [num_kv_heads, num_blocks, block_size]."""

    type: KVType
    keys: NDArray[Any]
    values: NDArray[Any]
    key_scales: Float32
    value_scales: Float32

    def write(self, slots: NDArray[np.int32], k: Float32, v: Float32, head_dim: int) -> None:
        """As `KVCache.write`."""
        for cache, scales, new in ((self.keys, self.key_scales, k), (self.values, self.value_scales, v)):
            numbers, scale = self.type.quantize(_heads(new, len(cache)))
            _by_slot(cache, head_dim)[:, slots] = numbers
            _by_slot(scales, 1)[:, slots, 0] = scale


def _by_slot(cache: NDArray[Any], width: int) -> NDArray[Any]:
    return cache.reshape(len(cache), -1, width)


def _heads(rows: Float32, num_kv_heads: int) -> Float32:
    """[num_kv_heads, n, head_dim]"""
    return rows.reshape(len(rows), num_kv_heads, rows.shape[1] // num_kv_heads).swapaxes(0, 1)


class _Arena:
    """Float32 arrays out of large allocations, which numpy asks the kernel to back with huge pages.

    A step reads every weight once: with small pages it spends 10% of its time on address translation, and loading twice
    as long on page faults.
    """

    CHUNK_FLOATS = 1 << 24

    def __init__(self) -> None:
        self._lock = threading.Lock()  # weights are packed by several threads
        self._free = np.empty(0, np.float32)

    def take(self, *shape: int) -> Float32:
        size = -(-math.prod(shape) // LINE_FLOATS) * LINE_FLOATS  # every array begins on a cache line
        with self._lock:
            if size > len(self._free):
                self._free = np.empty(max(size, self.CHUNK_FLOATS), np.float32)
            taken, self._free = self._free[:size], self._free[size:]
        return taken[: math.prod(shape)].reshape(shape)


class NumpyMemory:
    def __init__(self, kv_cache_dtype: str | None = None) -> None:
        """`kv_cache_dtype`: "int8" or "fp8"; whatever else it says, the KV cache is float32."""
        self._arena = _Arena()
        self._kv_type = KV_TYPES.get(kv_cache_dtype or "float32")
        self.kv_caches: dict[int, KVCache | QuantizedKVCache] = {}  # layer -> its cache
        self.block_size = 0

    def pack_matrix(self, parts: Sequence[StoredTensor], biases: Sequence[StoredTensor] = ()) -> Matrix:
        rows = self._arena.take(sum(part.shape[0] for part in parts), parts[0].shape[1])
        start = 0
        for part in parts:
            dequantize_into(rows[start : start + part.shape[0]], part)
            start += part.shape[0]
        return Matrix(rows, np.concatenate([self.pack_vector(bias) for bias in biases]) if biases else None)

    def pack_gated(self, gate: StoredTensor, up: StoredTensor) -> Matrix:
        return self.pack_matrix([gate, up])

    def pack_vector(self, part: StoredTensor) -> Float32:
        vector = np.empty(part.shape, np.float32)
        dequantize_into(vector, part)
        return vector

    def rope_table(self, frequencies: Float64, num_positions: int, factor: float = 1.0) -> RopeTable:
        angles = np.arange(num_positions, dtype=np.float64)[:, None] * frequencies
        return RopeTable((factor * np.cos(angles)).astype(np.float32), (factor * np.sin(angles)).astype(np.float32))

    def allocate_kv_cache(self, layers: Sequence[AttentionSpec], num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        for layer in layers:
            self.kv_caches[layer.layer] = self._new_kv_cache(layer, num_blocks, block_size)

    def _new_kv_cache(self, layer: AttentionSpec, num_blocks: int, block_size: int) -> KVCache | QuantizedKVCache:
        """Zeros, not empty: what is behind a request's last token is multiplied by zero and must be finite."""
        shape = (layer.num_kv_heads, num_blocks, block_size * layer.head_dim)
        if self._kv_type is None:
            return KVCache(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
        keys, values = (np.zeros(shape, self._kv_type.dtype) for _ in range(2))
        key_scales, value_scales = (np.zeros((*shape[:2], block_size), np.float32) for _ in range(2))
        return QuantizedKVCache(self._kv_type, keys, values, key_scales, value_scales)

    def matrix_bytes(self, parts: Sequence[tuple[int, str]], columns: int, *, is_gated: bool = False) -> int:
        return sum(rows for rows, _ in parts) * columns * FLOAT_BYTES

    def vector_bytes(self, size: int) -> int:
        return size * FLOAT_BYTES

    def rope_bytes(self, dim: int, num_positions: int) -> int:
        return num_positions * dim * FLOAT_BYTES

    def kv_block_bytes(self, layers: Sequence[AttentionSpec], block_size: int) -> int:
        heads = sum(2 * layer.num_kv_heads * self._head_bytes(layer.head_dim) for layer in layers)
        return heads * block_size

    def _head_bytes(self, head_dim: int) -> int:
        if self._kv_type is None:
            return head_dim * FLOAT_BYTES
        return head_dim * self._kv_type.dtype.itemsize + FLOAT_BYTES  # and its scale

    def step_bytes(self, shape: StepShape) -> int:
        """Activations of the widest moment of a layer, logits, and what the units of attention gather."""
        widths = (
            4 * shape.hidden_size
            + 3 * shape.intermediate_size
            + 4 * shape.attention.num_heads * shape.attention.head_dim
        )
        gathered = 2 * shape.attention.num_kv_heads * shape.attention.head_dim * shape.max_model_len
        scores = 3 * shape.attention.num_heads * max(MAX_UNIT_PAIRS * TILE, MIN_UNIT_ROWS * shape.max_model_len)
        floats = (
            shape.max_num_tokens * widths
            + 2 * shape.max_num_samples * shape.vocab_size
            + shape.num_threads * (2 * gathered + scores)
        )
        return floats * FLOAT_BYTES
