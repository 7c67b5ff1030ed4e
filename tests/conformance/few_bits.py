"""Matrices of few bits: random tensors in each format, and what a product with them is."""

from __future__ import annotations

import gguf
import numpy as np
from numpy.typing import NDArray

from headrace.backends.gguf_blocks import BLOCK_FORMATS
from headrace.backends.native.extension import native
from headrace.backends.numpy.dequantize import dequantize_into
from headrace.model.ops import Backend, StoredTensor
from tests.conformance.implementations import round_to_bfloat16

Float32 = NDArray[np.float32]
_HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}  # where a block of random bytes has its float16


def random_tensor(dtype: str, rows: int, width: int, seed: int = 0) -> StoredTensor:
    random = np.random.default_rng([seed, rows, width])
    if dtype in _HALVES:  # the oracle cannot quantise to these
        kind = BLOCK_FORMATS[dtype]
        blocks = random.integers(0, 256, (rows * width // kind.block, kind.block_bytes), np.uint8)
        for place in _HALVES[dtype]:
            halves = random.uniform(0.001, 0.01, len(blocks)).astype("<f2")
            blocks[:, place : place + 2] = halves.view(np.uint8).reshape(-1, 2)
        data = blocks.tobytes()
    else:
        values = random.standard_normal((rows, width)).astype(np.float32)
        data = gguf.quantize(values, gguf.GGMLQuantizationType[dtype]).tobytes()
    return StoredTensor(dtype, dtype, (rows, width), memoryview(data))


def values_of(tensor: StoredTensor) -> Float32:
    values = np.empty(tensor.shape, np.float32)
    dequantize_into(values, tensor)
    return values


def multiplied_rows(x: Float32, group: int, activations: str, backend: Backend) -> NDArray[np.float64]:
    """What rows are multiplied as: as they are, which is in bfloat16 where kernels round rows, or rounded by groups."""
    if activations != "none":
        return rounded_rows(x, group, activations)
    return (round_to_bfloat16(x) if native.rounds_rows(backend.instruction_set) else x).astype(np.float64)


LARGEST = {"int8": 127, "int16": 127 * 256}  # what a group's largest number becomes


def rounded_rows(x: Float32, group: int, activations: str = "int8") -> NDArray[np.float64]:
    """What a row is multiplied as: to the nearest step up to the largest of each group, ties to even."""
    steps = np.float32(LARGEST[activations])
    by_group = x.reshape(len(x), x.shape[1] // group, group)
    most = np.abs(by_group).max(axis=2, keepdims=True)
    factors = np.divide(steps, most, out=np.zeros_like(most), where=most > 0)
    return (np.rint(by_group * factors) * (most / steps).astype(np.float64)).reshape(x.shape)


def mixed(x: Float32) -> NDArray[np.float64]:
    """Each row times the orthogonal matrix of csrc/kernels/hadamard.h: signs, then a Hadamard matrix for each block of
    a power of two inputs, then cosines for the blocks."""
    width = x.shape[1]
    block = width & -width
    hadamard = np.ones((1, 1))
    while len(hadamard) < block:
        hadamard = np.kron([[1, 1], [1, -1]], hadamard)
    by_block = (x * _signs(width)).reshape(len(x), width // block, block) @ hadamard / np.sqrt(block)
    count = width // block
    if count <= 63:
        place = np.arange(count)
        cosines = np.sqrt(2 / count) * np.cos(np.pi * place[:, None] * (2 * place + 1) / (2 * count))
        cosines[0] /= np.sqrt(2)
        by_block = np.einsum("ji,rib->rjb", cosines, by_block)
    return by_block.reshape(x.shape)


def _signs(width: int) -> NDArray[np.float64]:
    state, signs = 1, []
    for _ in range(512):
        state = (state * 1664525 + 1013904223) % 2**32
        signs.append(-1.0 if state >= 2**31 else 1.0)
    return np.resize(signs, width)


def rounded_to_bytes(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each row to the nearest of 127 steps up to its largest."""
    most = np.abs(x).max(axis=1, keepdims=True)
    factors = np.divide(127, most, out=np.zeros_like(most), where=most > 0)
    return np.rint(x * factors) * most / 127
