from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from headrace.backends.numpy.dequantize import CHUNK_ELEMENTS, dequantize_into
from headrace.errors import UnsupportedModelError
from headrace.model.ops import StoredTensor

SHAPES = ((1, 32), (3, 64), (7, 32 * 11), (5, CHUNK_ELEMENTS // 4 + 32))
SUPER_SHAPES = ((1, 256), (3, 256 * 5), (5, CHUNK_ELEMENTS // 4 + 256))


def read(dtype: str, shape: tuple[int, ...], data: bytes) -> np.ndarray:
    out = np.full(shape, np.nan, np.float32)
    dequantize_into(out, StoredTensor("t", dtype, shape, memoryview(data)))
    return out


def values(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(shape[1]).standard_normal(shape, np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_formats_equal_the_oracles_bit_for_bit(name: str, shape: tuple[int, ...]) -> None:
    kind = gguf.GGMLQuantizationType[name]
    data = gguf.quantize(values(shape), kind)
    expected = gguf.dequantize(data, kind).astype(np.float32)
    assert read(name, shape, data.tobytes()).tobytes() == expected.tobytes()


@pytest.mark.parametrize("shape", SUPER_SHAPES)
@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])
def test_formats_of_large_blocks_equal_the_oracles_bit_for_bit(name: str, shape: tuple[int, ...]) -> None:
    """Random bytes, as the oracle cannot quantise to these; the float16 in them are made finite."""
    kind = gguf.GGMLQuantizationType[name]
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows, width = shape
    blocks = np.random.default_rng(width).integers(0, 256, (rows * width // 256, block_bytes), np.uint8)
    for place in (208,) if name == "Q6_K" else (0, 2):
        blocks[:, place + 1] &= 0xBF  # exponents below 16
    expected = gguf.dequantize(blocks.reshape(rows, -1), kind)
    assert read(name, shape, blocks.tobytes()).tobytes() == expected.tobytes()


@pytest.mark.parametrize(("name", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16), ("F32", torch.float32)])
def test_plain_types_equal_torchs(name: str, dtype: torch.dtype) -> None:
    stored = torch.from_numpy(values((5, 7))).to(dtype)
    data = stored.view(torch.uint8).numpy().tobytes()
    assert read(name, (5, 7), data).tobytes() == stored.float().numpy().tobytes()


def test_other_types_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'t' has the type IQ4_NL.*Q4_1"):
        read("IQ4_NL", (1, 32), bytes(18))
