"""Stored weights to float32, bit for bit as the formats define them.

Source of the block formats: ggml/src/ggml-quants.c. Every format of this backend is a function that writes float32
values of whole rows into `out`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headrace.errors import UnsupportedModelError
from headrace.model.ops import StoredTensor

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

BLOCK = 32  # elements in a block of every quantised format below
CHUNK_ELEMENTS = 1 << 17  # converted at a time, so that the passes over them stay in the cache

_Q8_0 = np.dtype([("scale", "<f2"), ("quants", "i1", BLOCK)])
_Q4_0 = np.dtype([("scale", "<f2"), ("quants", "u1", BLOCK // 2)])
_Q4_1 = np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("quants", "u1", BLOCK // 2)])


def dequantize_into(out: Float32, tensor: StoredTensor) -> None:
    """Write the values of `tensor` into `out`, a C-contiguous array of the same shape.

    Raises `UnsupportedModelError` if the dtype has no function here.
    """
    convert = _FORMATS.get(tensor.dtype)
    if convert is None:
        raise UnsupportedModelError(
            f"tensor {tensor.name!r} has the type {tensor.dtype}, which the numpy backend does not read; it reads "
            f"{', '.join(_FORMATS)}"
        )
    values = out.reshape(-1)
    stored = np.frombuffer(tensor.data, dtype=np.uint8)
    num_elements = values.size
    for start in range(0, num_elements, CHUNK_ELEMENTS):
        end = min(start + CHUNK_ELEMENTS, num_elements)
        # Chunks and rows are whole numbers of blocks, so these divisions have no remainder.
        piece = stored[start * stored.size // num_elements : end * stored.size // num_elements]
        convert(piece, values[start:end])


def _f32(stored: Bytes, out: Float32) -> None:
    out[:] = stored.view("<f4")


def _f16(stored: Bytes, out: Float32) -> None:
    out[:] = stored.view("<f2")


def _bf16(stored: Bytes, out: Float32) -> None:
    np.left_shift(stored.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)


def _q8_0(stored: Bytes, out: Float32) -> None:
    """quant * scale"""
    blocks, values = stored.view(_Q8_0), out.reshape(-1, BLOCK)
    values[:] = blocks["quants"]
    values *= blocks["scale"].astype(np.float32)[:, None]


def _q4_0(stored: Bytes, out: Float32) -> None:
    """(quant - 8) * scale; the low nibbles are the first half of a block"""
    blocks, values = stored.view(_Q4_0), out.reshape(-1, BLOCK)
    _unpack_nibbles(blocks["quants"], values)
    values -= 8
    values *= blocks["scale"].astype(np.float32)[:, None]


def _q4_1(stored: Bytes, out: Float32) -> None:
    """quant * scale + minimum"""
    blocks, values = stored.view(_Q4_1), out.reshape(-1, BLOCK)
    _unpack_nibbles(blocks["quants"], values)
    values *= blocks["scale"].astype(np.float32)[:, None]
    values += blocks["minimum"].astype(np.float32)[:, None]


def _unpack_nibbles(packed: Bytes, values: Float32) -> None:
    values[:, : BLOCK // 2] = packed & 15
    values[:, BLOCK // 2 :] = packed >> 4


_FORMATS: dict[str, Callable[[Bytes, Float32], None]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
}
