from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from headrace.backends.numpy.dequantize import CHUNK_ELEMENTS, dequantize_into
from headrace.errors import UnsupportedModelError
from headrace.model.ops import StoredTensor

SHAPES = ((1, 32), (3, 64), (7, 32 * 11), (5, CHUNK_ELEMENTS // 4 + 32))


def read(dtype: str, shape: tuple[int, ...], data: bytes) -> np.ndarray:
    out = np.full(shape, np.nan, np.float32)
    dequantize_into(out, StoredTensor("t", dtype, shape, memoryview(data)))
    return out


def values(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(shape[1]).standard_normal(shape, np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_formats_equal_the_oracles_bit_for_bit(name: str, shape: tuple[int, ...]) -> None:
    kind = gguf.GGMLQuantizationType[name]
    data = gguf.quantize(values(shape), kind)
    expected = gguf.dequantize(data, kind).astype(np.float32)
    assert read(name, shape, data.tobytes()).tobytes() == expected.tobytes()


@pytest.mark.parametrize(("name", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16), ("F32", torch.float32)])
def test_plain_types_equal_torchs(name: str, dtype: torch.dtype) -> None:
    stored = torch.from_numpy(values((5, 7))).to(dtype)
    data = stored.view(torch.uint8).numpy().tobytes()
    assert read(name, (5, 7), data).tobytes() == stored.float().numpy().tobytes()


def test_other_types_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'t' has the type Q6_K.*Q4_1"):
        read("Q6_K", (1, 256), bytes(210))
