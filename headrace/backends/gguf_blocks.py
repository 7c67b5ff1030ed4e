"""The block formats of GGUF, all in one form: groups of small unsigned integers, each group with a scale.

A value is `scale * (quant - zero)`, where the format has a fixed zero, or `scale * quant + minimum`: in float32, these
very operations in this order, which give bit for bit what ggml gives. Source: ggml/src/ggml-quants.c, ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UInt8 = NDArray[np.uint8]
Float32 = NDArray[np.float32]

GROUP = 32  # of `quantize`

_LOW, _SUPER = np.uint8(15), 256  # the low half of a byte; elements of a block that has scales of its groups' scales


@dataclass(frozen=True)
class Groups:
    """Consecutive elements of a tensor, row-major."""

    quants: UInt8  # [num_groups, group]
    scales: Float32  # [num_groups]
    minimums: Float32 | None  # [num_groups]; None: the format has a zero

    def dequantize_into(self, out: Float32, zero: int | None) -> None:
        """The values, into `out` [as many elements as there are]."""
        values = out.reshape(self.quants.shape)
        values[:] = self.quants
        if zero is not None:
            values -= np.float32(zero)
        values *= self.scales[:, None]
        if self.minimums is not None:
            values += self.minimums[:, None]


@dataclass(frozen=True)
class BlockFormat:
    group: int  # elements with one scale: 32 or 16
    bits: int  # that the quants need
    zero: int | None  # the quant that stands for 0; None: groups have minimums
    block: int  # elements
    block_bytes: int
    unpack_blocks: Callable[[UInt8], Groups]  # [num_blocks, block_bytes] -> their groups

    def unpack(self, stored: UInt8) -> Groups:
        """The groups of whole blocks, as the bytes that they are stored in."""
        return self.unpack_blocks(stored.reshape(-1, self.block_bytes))


def quantize(values: Float32, bits: int, group: int = GROUP) -> Groups:
    """Rows of whole groups, in 8 bits with the zero 128, or in 4 bits with minimums: the nearest of what these
    can say, where the largest number of a group (and in 4 bits the smallest too) is exact."""
    by_group = values.reshape(-1, group)
    if bits == 8:
        scales = np.abs(by_group).max(axis=1) / np.float32(127)
        lowest, zero, most = np.zeros_like(scales), 128, 255
    else:
        lowest, zero, most = by_group.min(axis=1), 0, 15
        scales = (by_group.max(axis=1) - lowest) / np.float32(15)
    factors = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    quants = np.rint((by_group - lowest[:, None]) * factors[:, None]) + zero
    return Groups(quants.clip(0, most).astype(np.uint8), scales, None if bits == 8 else lowest)


def _half(blocks: UInt8, place: int) -> Float32:
    """A float16 of each block, at this byte."""
    return np.ascontiguousarray(blocks[:, place : place + 2]).view("<f2")[:, 0].astype(np.float32)


def _nibbles(packed: UInt8) -> UInt8:
    """[n, bytes] -> [n, 2 * bytes]: all low halves, then all high ones."""
    return np.concatenate([packed & _LOW, packed >> np.uint8(4)], axis=1)


def _fifth_bits(blocks: UInt8, place: int) -> UInt8:
    """32 bits of each block, each as a 16 or a 0."""
    return np.unpackbits(blocks[:, place : place + 4], axis=1, bitorder="little") << np.uint8(4)


def _q4_0(blocks: UInt8) -> Groups:
    return Groups(_nibbles(blocks[:, 2:]), _half(blocks, 0), None)


def _q4_1(blocks: UInt8) -> Groups:
    return Groups(_nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: UInt8) -> Groups:
    return Groups(_nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2), _half(blocks, 0), None)


def _q5_1(blocks: UInt8) -> Groups:
    return Groups(_nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: UInt8) -> Groups:
    return Groups(blocks[:, 2:] ^ np.uint8(128), _half(blocks, 0), None)  # from -128 ... 127 to 0 ... 255


def _scales_of_scales(blocks: UInt8) -> tuple[Float32, Float32]:
    """Scales and minimums of the eight groups of each block: numbers of 6 bits, times a float16 for all of them."""
    packed = blocks[:, 4:16]
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6) << 4], axis=1)
    minimums = np.concatenate([second & 63, (rest >> 4) | (second >> 6) << 4], axis=1)
    return (
        (_half(blocks, 0)[:, None] * scales.astype(np.float32)).reshape(-1),
        -(_half(blocks, 2)[:, None] * minimums.astype(np.float32)).reshape(-1),
    )


def _nibbles_by_32(packed: UInt8) -> UInt8:
    """[n, 128] -> [8 n, 32]: of each 32 bytes the low halves are a group, and the high ones the next."""
    by_32 = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([by_32 & _LOW, by_32 >> np.uint8(4)], axis=2).reshape(-1, 32)


def _q4_k(blocks: UInt8) -> Groups:
    return Groups(_nibbles_by_32(blocks[:, 16:]), *_scales_of_scales(blocks))


def _q5_k(blocks: UInt8) -> Groups:
    shifts = np.arange(8, dtype=np.uint8)[:, None]  # bit g of each byte belongs to group g
    fifth = (blocks[:, None, 16:48] >> shifts & np.uint8(1)) << np.uint8(4)
    return Groups(_nibbles_by_32(blocks[:, 48:]) | fifth.reshape(-1, 32), *_scales_of_scales(blocks))


def _q6_k(blocks: UInt8) -> Groups:
    by_64 = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([by_64 & _LOW, by_64 >> np.uint8(4)], axis=2)  # of each half of the block: four times 32
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)) << np.uint8(4)
    scales = _half(blocks, 208)[:, None] * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return Groups(low.reshape(-1, 16) | high.reshape(-1, 16), scales.reshape(-1), None)


BLOCK_FORMATS: dict[str, BlockFormat] = {
    "Q4_0": BlockFormat(32, 4, 8, 32, 18, _q4_0),
    "Q4_1": BlockFormat(32, 4, None, 32, 20, _q4_1),
    "Q5_0": BlockFormat(32, 5, 16, 32, 22, _q5_0),
    "Q5_1": BlockFormat(32, 5, None, 32, 24, _q5_1),
    "Q8_0": BlockFormat(32, 8, 128, 32, 34, _q8_0),
    "Q4_K": BlockFormat(32, 4, None, _SUPER, 144, _q4_k),
    "Q5_K": BlockFormat(32, 5, None, _SUPER, 176, _q5_k),
    "Q6_K": BlockFormat(16, 6, 32, _SUPER, 210, _q6_k),
}
