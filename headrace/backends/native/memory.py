"""Weights as panels, the KV cache as groups of 16 slots (csrc/args.h), and how many bytes they take."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from headrace.backends.gguf_blocks import BLOCK_FORMATS, GROUP, Groups, quantize
from headrace.backends.native.extension import native
from headrace.backends.numpy.dequantize import dequantize_into, unreadable
from headrace.errors import UnsupportedModelError
from headrace.model.ops import AttentionSpec, Precision, StepShape, StoredTensor

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

CACHE_LINE = 64
LOGIT_ROWS = 64  # whose logits are computed at a time: no array of all samples by the whole vocabulary


ROUNDED_ROWS = native.Type.uint8  # as what groups are multiplied: rows are rounded to integers
ALL_INPUTS = -1  # are a group


@dataclass(frozen=True)
class Kind:
    """How a matrix is packed. `group` inputs share a scale; 0: every weight is a number of its own."""

    type: native.Type
    group: int = 0
    zero: int = 0
    wide_scales: bool = False
    bits: int = 0  # that weights are quantised to while they are loaded; 0: they are packed as they are stored
    product: native.Type = ROUNDED_ROWS  # of groups: numbers that quants become, or ROUNDED_ROWS
    row_bytes: int = 1  # that rows are rounded to

    def matrix(self, out: int, width: int, address: int = 0, bias: int = 0) -> native.Matrix:
        group = width if self.group == ALL_INPUTS else self.group
        return native.Matrix(
            address, bias, out, width, self.type, group, self.zero, self.wide_scales, self.product, self.row_bytes
        )


QUANTIZED = {
    "int8": Kind(native.Type.uint8, GROUP, zero=128, wide_scales=True, bits=8),
    "int4": Kind(native.Type.uint4, GROUP, zero=-1, wide_scales=True, bits=4),
}

# All inputs of an output have one scale, and are mixed (csrc/kernels/hadamard.h).
MIXED = Kind(native.Type.uint8, ALL_INPUTS, zero=128, wide_scales=True)

# What the extension itself reads, by the word of the checkpoint.
_STORED = {"F32": native.Stored.float32, "BF16": native.Stored.bfloat16, "F16": native.Stored.float16} | {
    name: native.Stored[name.lower()] for name in BLOCK_FORMATS
}

_ROWS_AT_A_TIME = 1024  # of a quantised tensor that are unpacked before they are packed


@dataclass(frozen=True)
class Piece:
    """A packed matrix: columns `first` to `first + out` of the whole one's product. Of a gated one, panels alternate
    between gate and up, and `out` is the width of the result."""

    matrix: native.Matrix
    buffer: native.Buffer  # holds what `matrix` points to
    first: int
    out: int
    bias: Float32 | None = None  # [out, filled up to whole panels]; `matrix` points to it too


@dataclass(frozen=True)
class NativeMatrix:
    """One piece, or one for each run of parts that are stored in the same few bits."""

    pieces: tuple[Piece, ...]
    out: int

    @property
    def whole(self) -> native.Matrix:
        """The only piece. Raises `UnsupportedModelError` if there are several."""
        if len(self.pieces) > 1:
            raise UnsupportedModelError("Parts of this matrix are stored in different types; use --quantization none.")
        return self.pieces[0].matrix


@dataclass(frozen=True)
class NativeVector:
    values: Float32

    @property
    def address(self) -> int:
        return int(self.values.ctypes.data)


@dataclass(frozen=True)
class RopeTable:
    """cos and sin of every angle, each [num_positions, dim / 2]; computed in float64 and rounded once."""

    cos: Float32
    sin: Float32
    rotation: native.Rotation  # points into both


class _Arena:
    """Memory for matrices out of large pieces, which huge pages fit into. A step reads all of them."""

    PIECE = 64 << 20

    def __init__(self) -> None:
        self._lock = threading.Lock()  # weights are packed by several threads
        self._piece = native.Buffer(0)
        self._used = 0

    def take(self, size: int) -> tuple[native.Buffer, int]:
        """Zeroed memory: what it is a part of, and its address, which begins a cache line."""
        size = -(-size // CACHE_LINE) * CACHE_LINE
        with self._lock:
            if self._used + size > self._piece.size:
                self._piece, self._used = native.Buffer(max(size, self.PIECE)), 0
            address = self._piece.address + self._used
            self._used += size
            return self._piece, address


class NativeMemory:
    def __init__(self, num_threads: int, precision: Precision, kernels: str) -> None:
        self.type = native.Type[precision.dtype]
        self._kv_type = native.Type[precision.kv_cache_dtype or precision.dtype]
        self.kv_caches: dict[int, native.KVCache] = {}  # layer -> its cache
        self._kv_buffers: list[native.Buffer] = []
        self._populator: native.Populator | None = None
        self._num_threads = num_threads
        self._quantization = precision.quantization
        self._activation_quantization = precision.activation_quantization
        self._has_tiles = native.has_tiles(kernels)
        self._arena = _Arena()

    # ---- weights

    def pack_matrix(self, parts: Sequence[StoredTensor], biases: Sequence[StoredTensor] = ()) -> NativeMatrix:
        kinds = [self._kind_of(part.dtype, part.shape[1]) for part in parts]
        pieces: list[Piece] = []
        place = 0
        for kind, run in groupby(zip(kinds, range(len(parts)), strict=True), key=itemgetter(0)):
            places = [index for _, index in run]
            own = [parts[index] for index in places]
            pieces.append(self._pack_piece(kind, place, own, [biases[index] for index in places] if biases else []))
            place += pieces[-1].out
        return NativeMatrix(tuple(pieces), place)

    def _pack_piece(
        self, kind: Kind, place: int, parts: Sequence[StoredTensor], biases: Sequence[StoredTensor]
    ) -> Piece:
        out, width = sum(part.shape[0] for part in parts), parts[0].shape[1]
        piece = self._new_piece(kind, place, out, width, _join(biases, whole_panels(out)) if biases else None)
        first = 0
        for part in parts:
            _pack(piece.matrix, kind, part, first)
            first += part.shape[0]
        return piece

    def pack_gated(self, gate: StoredTensor, up: StoredTensor) -> NativeMatrix:
        inner, width = gate.shape
        kind = self._kind_of_gated(gate.dtype, up.dtype, width)
        piece = self._new_piece(kind, 0, 2 * whole_panels(inner), width)
        for offset, part in enumerate((gate, up)):
            _pack(piece.matrix, kind, part, 0, panel_step=2, panel_offset=offset)
        return NativeMatrix((replace(piece, out=inner),), inner)

    def _kind_of(self, dtype: str, width: int) -> Kind:
        """What parts of this stored type are packed as."""
        if self._quantization in QUANTIZED and width % GROUP == 0:
            is_wide = GROUP < width <= native.MAX_MIXED
            if self._quantization == "int8" and self._activation_quantization in ("auto", "int8") and is_wide:
                return MIXED
            return self._with_product(QUANTIZED[self._quantization])
        stored = BLOCK_FORMATS.get(dtype)
        if self._quantization != "stored" or stored is None:
            return Kind(self.type)
        return self._with_product(
            Kind(
                native.Type.uint4 if stored.bits == 4 else native.Type.uint8,
                stored.group,
                -1 if stored.zero is None else stored.zero,
                wide_scales=stored.block > stored.group,  # scales of scales are products, which a float16 does not hold
            )
        )

    def _with_product(self, kind: Kind) -> Kind:
        """What products are the quickest without losing anything that can be seen: of rows as they are on tiles of AMX,
        else of rows in 16 bits."""
        word = self._activation_quantization
        if word == "auto":
            word = "none" if self._has_tiles and self.type == native.Type.bfloat16 else "int16"
        if word == "none":
            return replace(kind, product=self.type)
        return replace(kind, product=ROUNDED_ROWS, row_bytes=1 if word == "int8" else 2)

    def _kind_of_gated(self, gate: str, up: str, width: int) -> Kind:
        """Panels of the two alternate, so if they are stored in different types they are expanded."""
        kind = self._kind_of(gate, width)
        return kind if kind == self._kind_of(up, width) else Kind(self.type)

    def _new_piece(self, kind: Kind, first: int, out: int, width: int, bias: Float32 | None = None) -> Piece:
        buffer, address = self._arena.take(4 * kind.matrix(out, width).num_words)
        matrix = kind.matrix(out, width, address, 0 if bias is None else bias.ctypes.data)
        return Piece(matrix, buffer, first, out, bias)

    def pack_vector(self, part: StoredTensor) -> NativeVector:
        vector = np.empty(part.shape, np.float32)
        dequantize_into(vector, part)
        return NativeVector(vector)

    def rope_table(self, frequencies: Float64, num_positions: int, factor: float = 1.0) -> RopeTable:
        angles = np.arange(num_positions, dtype=np.float64)[:, None] * frequencies
        cos, sin = ((factor * function(angles)).astype(np.float32) for function in (np.cos, np.sin))
        return RopeTable(cos, sin, native.Rotation(cos.ctypes.data, sin.ctypes.data, 2 * len(frequencies)))

    # ---- the KV cache

    def allocate_kv_cache(self, layers: Sequence[AttentionSpec], num_blocks: int, block_size: int) -> None:
        self.close()
        self.kv_caches.clear()
        self._kv_buffers.clear()
        num_groups = -(-num_blocks * block_size // native.GROUP)
        for layer in layers:
            if layer.head_dim > native.MAX_HEAD_DIM:
                raise UnsupportedModelError(
                    f"The native backend has heads of up to {native.MAX_HEAD_DIM} elements, and this model's have "
                    f"{layer.head_dim}; use --backend numpy."
                )
            buffer = native.Buffer(num_groups * self._group_bytes(layer))
            self._kv_buffers.append(buffer)
            self.kv_caches[layer.layer] = self._kv_cache(layer, buffer.address, block_size)
        self._populator = native.Populator(tuple(self._kv_buffers))

    def close(self) -> None:
        self._populator = None  # its thread ends

    def _kv_cache(self, layer: AttentionSpec, address: int, block_size: int) -> native.KVCache:
        return native.KVCache(
            address, self._kv_type, layer.num_kv_heads, layer.head_dim, block_size, arithmetic=self.type
        )

    def _group_bytes(self, layer: AttentionSpec) -> int:
        return int(self._kv_cache(layer, 0, native.GROUP).group_bytes)

    # ---- sizes

    def matrix_bytes(self, parts: Sequence[tuple[int, str]], columns: int, *, is_gated: bool = False) -> int:
        if is_gated:
            (rows, gate), (_, up) = parts
            return 4 * int(self._kind_of_gated(gate, up, columns).matrix(2 * whole_panels(rows), columns).num_words)
        kinds = groupby(((self._kind_of(dtype, columns), rows) for rows, dtype in parts), key=itemgetter(0))
        return sum(4 * int(kind.matrix(sum(rows for _, rows in run), columns).num_words) for kind, run in kinds)

    def vector_bytes(self, size: int) -> int:
        return 4 * size

    def rope_bytes(self, dim: int, num_positions: int) -> int:
        return 4 * num_positions * dim

    def kv_block_bytes(self, layers: Sequence[AttentionSpec], block_size: int) -> int:
        return -(-sum(self._group_bytes(layer) for layer in layers) * block_size // native.GROUP)

    def step_bytes(self, shape: StepShape) -> int:
        """Every activation of a layer as float32 beside every other, logits, and what attention needs of its own."""
        attention = shape.attention
        head_width = -(-attention.head_dim // native.PANEL) * native.PANEL
        widths = 4 * shape.hidden_size + shape.intermediate_size + 4 * attention.num_heads * head_width
        floats = (shape.max_num_tokens + shape.max_num_samples) * (widths + 8 * native.PANEL)
        floats += min(LOGIT_ROWS, shape.max_num_samples) * (shape.vocab_size + native.PANEL)
        floats += (
            num_partials(shape.max_model_len, self._num_threads) * attention.num_heads * (head_width + native.PANEL)
        )
        group = attention.num_heads // attention.num_kv_heads
        scratch = 2 * max(group, 48) * head_width + 4 * native.SPLIT * head_width
        if self._quantization != "none":  # rows of a tile in 2 bytes, 3 numbers for each group; few rows; panels
            width = max(shape.hidden_size, shape.intermediate_size)
            scratch += native.max_tile_rows() * width * 11 // 16
            scratch += (native.FEW_ROWS + native.EXPANDED_PANELS * native.PANEL) * width
        return 4 * (floats + shape.num_threads * scratch)


def whole_panels(size: int) -> int:
    return int(-(-size // native.PANEL) * native.PANEL)


def _join(biases: Sequence[StoredTensor], size: int) -> Float32:
    """One after another as float32, and zeros up to `size`."""
    joined, first = np.zeros(size, np.float32), 0
    for bias in biases:
        dequantize_into(joined[first : first + bias.shape[0]], bias)
        first += bias.shape[0]
    return joined


def num_partials(max_model_len: int, num_threads: int) -> int:
    """Places for partial results of attention that a step may need."""
    return int(native.max_partials(max_model_len, num_threads))


def _pack(
    matrix: native.Matrix, kind: Kind, part: StoredTensor, first: int, panel_step: int = 1, panel_offset: int = 0
) -> None:
    """Put the tensor's rows into the matrix, from row `first` on."""
    num_rows, width = part.shape
    if kind.group in (0, ALL_INPUTS):
        stored = _STORED.get(part.dtype)
        if stored is None:
            raise unreadable(part)
        matrix.pack(np.frombuffer(part.data, np.uint8), stored, num_rows, first, panel_step, panel_offset)
        return
    row_bytes = part.data.nbytes // max(num_rows, 1)
    for start in range(0, num_rows, _ROWS_AT_A_TIME):
        count = min(_ROWS_AT_A_TIME, num_rows - start)
        data = part.data[start * row_bytes : (start + count) * row_bytes]
        groups = _groups_of(kind, StoredTensor(part.name, part.dtype, (count, width), data))
        matrix.pack_groups(
            np.ascontiguousarray(groups.quants).reshape(-1),
            _bytes_of(groups.scales, kind.wide_scales),
            _bytes_of(groups.minimums, kind.wide_scales),
            count,
            first + start,
            panel_step,
            panel_offset,
        )


def _groups_of(kind: Kind, part: StoredTensor) -> Groups:
    """As the part is stored, or quantised now."""
    if not kind.bits:
        return BLOCK_FORMATS[part.dtype].unpack(np.frombuffer(part.data, np.uint8))
    values = np.empty(part.shape, np.float32)
    dequantize_into(values, part)
    return quantize(values, kind.bits, kind.group)


def _bytes_of(scales: Float32 | None, wide: bool) -> NDArray[np.uint8]:
    if scales is None:
        return np.zeros(0, np.uint8)
    return np.ascontiguousarray(scales, np.float32 if wide else np.float16).view(np.uint8)
