"""Stored weights to float32, bit for bit as their formats define them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headrace.backends.gguf_blocks import BLOCK_FORMATS
from headrace.errors import UnsupportedModelError
from headrace.model.ops import StoredTensor

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

CHUNK_ELEMENTS = 1 << 17  # converted at a time, so that the passes over them stay in the cache; whole blocks


def dequantize_into(out: Float32, tensor: StoredTensor) -> None:
    """Write the values of `tensor` into `out`, a C-contiguous array of the same shape.

    Raises `UnsupportedModelError` if the dtype has no function here.
    """
    kind, convert = BLOCK_FORMATS.get(tensor.dtype), _PLAIN.get(tensor.dtype)
    if kind is None and convert is None:
        raise unreadable(tensor)
    values = out.reshape(-1)
    stored = np.frombuffer(tensor.data, dtype=np.uint8)
    for start in range(0, values.size, CHUNK_ELEMENTS):
        end = min(start + CHUNK_ELEMENTS, values.size)
        # Chunks and rows are whole numbers of blocks, so these divisions have no remainder.
        piece = stored[start * stored.size // values.size : end * stored.size // values.size]
        if kind is not None:
            kind.unpack(piece).dequantize_into(values[start:end], kind.zero)
        elif convert is not None:
            convert(piece, values[start:end])


def unreadable(tensor: StoredTensor) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"tensor {tensor.name!r} has the type {tensor.dtype}, which no backend here reads; they read "
        f"{', '.join([*_PLAIN, *BLOCK_FORMATS])}"
    )


def _f32(stored: Bytes, out: Float32) -> None:
    out[:] = stored.view("<f4")


def _f16(stored: Bytes, out: Float32) -> None:
    out[:] = stored.view("<f2")


def _bf16(stored: Bytes, out: Float32) -> None:
    np.left_shift(stored.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)


_PLAIN: dict[str, Callable[[Bytes, Float32], None]] = {"F32": _f32, "F16": _f16, "BF16": _bf16}
