"""Weights and KV cache as float32 arrays, and how many bytes they take."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from headrace.backends.numpy.dequantize import dequantize_into
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

# The matrix of a gated MLP is multiplied in panels too, of columns of its transpose; docs/adr/0001 has the reasons.
# Several rows are filled up to whole groups, at most MAX_ROWS of them at a time, so that any number of groups can be
# tried. Of the columns that a product computes, EDGE at either end are thrown away. A single row is multiplied together
# with a row of zeros, as a pair, because of one row numpy makes another kind of product; and in wide panels, which are
# read faster.
MAX_PANEL_COLUMNS = 288
MAX_WIDE_COLUMNS = 1024
EDGE = 8
PAIR = 2
GROUP = 12
MAX_ROWS = 8 * GROUP

TRANSPOSED_ROWS = 64  # at a time, when a matrix is loaded: they stay in the cache

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


@dataclass(frozen=True)
class GatedPanel:
    """Columns of the result that are computed at a time, and those of gate and up that they come from."""

    place: slice  # of the columns in the result
    gate: Float32  # a window [in, EDGE + columns + EDGE]
    up: Float32  # another
    inside: slice  # of the columns in either window


@dataclass(frozen=True)
class GatedMatrix:
    """Gate and up, [inner, in] each, stored as one transpose and cut into panels, which depend on its size alone.

    The rows of `edged` [in, EDGE + 2 * inner + EDGE] overlap: at the edges are the ends of the rows before and after.
    So any panel can be multiplied with EDGE columns on either side of it, though no more than the matrix is stored.
    """

    edged: Float32

    @property
    def columns(self) -> Float32:
        """[in, 2 * inner]"""
        return self.edged[:, EDGE:-EDGE]

    @property
    def rows(self) -> Float32:
        """[2 * inner, in], as in the formula: a view across the storage."""
        return self.columns.T

    @property
    def inner(self) -> int:
        return self.columns.shape[1] // 2

    @cached_property
    def panels(self) -> list[GatedPanel]:
        return self._cut(MAX_PANEL_COLUMNS)

    @cached_property
    def wide_panels(self) -> list[GatedPanel]:
        return self._cut(MAX_WIDE_COLUMNS)

    def _cut(self, max_columns: int) -> list[GatedPanel]:
        """The windows of all panels have one size: those of a narrower last panel begin before it."""
        num_panels = 2 * -(-self.inner // (2 * max_columns))  # even, for two threads
        width = min(self.inner, -(-self.inner // (num_panels * PANEL_STEP)) * PANEL_STEP)
        panels = []
        for start in range(0, self.inner, width):
            place = slice(start, min(start + width, self.inner))
            first = min(start, self.inner - width)
            gate, up = (self.edged[:, half + first : half + first + EDGE + width + EDGE] for half in (0, self.inner))
            panels.append(GatedPanel(place, gate, up, slice(EDGE + start - first, EDGE + place.stop - first)))
        return panels


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
            by_slot = cache.reshape(len(cache), -1, head_dim)
            by_slot[:, slots] = new.reshape(len(new), len(cache), head_dim).swapaxes(0, 1)


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


def _pieces(tensor: StoredTensor) -> Iterator[StoredTensor]:
    """The tensor's rows, a few at a time."""
    row_bytes = tensor.data.nbytes // tensor.shape[0]
    for start in range(0, tensor.shape[0], TRANSPOSED_ROWS):
        stop = min(start + TRANSPOSED_ROWS, tensor.shape[0])
        data = tensor.data[start * row_bytes : stop * row_bytes]
        yield StoredTensor(tensor.name, tensor.dtype, (stop - start, tensor.shape[1]), data)


class NumpyMemory:
    def __init__(self) -> None:
        self._arena = _Arena()
        self.kv_caches: dict[int, KVCache] = {}  # layer -> its cache
        self.block_size = 0

    def pack_matrix(self, parts: Sequence[StoredTensor], biases: Sequence[StoredTensor] = ()) -> Matrix:
        rows = self._arena.take(sum(part.shape[0] for part in parts), parts[0].shape[1])
        start = 0
        for part in parts:
            dequantize_into(rows[start : start + part.shape[0]], part)
            start += part.shape[0]
        return Matrix(rows, np.concatenate([self.pack_vector(bias) for bias in biases]) if biases else None)

    def pack_gated(self, gate: StoredTensor, up: StoredTensor) -> GatedMatrix:
        inner, num_in = gate.shape
        stored = self._arena.take(EDGE + num_in * 2 * inner + EDGE)
        stored[:EDGE] = stored[-EDGE:] = 0
        strides = (2 * inner * FLOAT_BYTES, FLOAT_BYTES)
        matrix = GatedMatrix(as_strided(stored, (num_in, EDGE + 2 * inner + EDGE), strides))
        start = 0
        for piece in (*_pieces(gate), *_pieces(up)):
            rows = np.empty(piece.shape, np.float32)
            dequantize_into(rows, piece)
            matrix.columns[:, start : start + len(rows)] = rows.T
            start += len(rows)
        return matrix

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
            shape = (layer.num_kv_heads, num_blocks, block_size * layer.head_dim)
            # zeros, not empty: what is behind a request's last token is multiplied by zero and must be finite
            self.kv_caches[layer.layer] = KVCache(np.zeros(shape, np.float32), np.zeros(shape, np.float32))

    def matrix_bytes(self, rows: int, columns: int) -> int:
        return rows * columns * FLOAT_BYTES

    def vector_bytes(self, size: int) -> int:
        return size * FLOAT_BYTES

    def rope_bytes(self, dim: int, num_positions: int) -> int:
        return num_positions * dim * FLOAT_BYTES

    def kv_block_bytes(self, layers: Sequence[AttentionSpec], block_size: int) -> int:
        return sum(2 * layer.num_kv_heads * layer.head_dim * block_size * FLOAT_BYTES for layer in layers)

    def step_bytes(self, shape: StepShape) -> int:
        """Activations of the widest moment of a layer, logits, what the units of attention gather, a panel's product on
        each thread, and the first step's trial of BLAS."""
        widths = (
            4 * shape.hidden_size
            + 3 * shape.intermediate_size
            + 4 * shape.attention.num_heads * shape.attention.head_dim
        )
        gathered = 2 * shape.attention.num_kv_heads * shape.attention.head_dim * shape.max_model_len
        scores = 3 * shape.attention.num_heads * max(MAX_UNIT_PAIRS * TILE, MIN_UNIT_ROWS * shape.max_model_len)
        product = MAX_ROWS * (EDGE + MAX_PANEL_COLUMNS + EDGE)
        wide = EDGE + MAX_WIDE_COLUMNS + EDGE
        trial = shape.hidden_size * wide + MAX_ROWS * (PAIR + 1) * (shape.hidden_size + 2 * wide)
        floats = (
            (shape.max_num_tokens + GROUP) * widths
            + 2 * shape.max_num_requests * shape.vocab_size
            + shape.num_threads * (2 * gathered + scores + product)
            + trial
        )
        return floats * FLOAT_BYTES
