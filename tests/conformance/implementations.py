"""All that the suite holds to the truth: each backend, in each dtype, with each instruction set of this machine. For
attention also with each type of KV cache."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headrace.model.ops import Backend, Precision
from headrace.worker.backends import make_backend
from tests.installed_backends import INSTALLED_BACKENDS

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Implementation:
    backend: str
    dtype: str = "float32"
    instruction_set: str = ""  # of the native backend
    kv_cache_dtype: str | None = None  # None: dtype

    def __str__(self) -> str:
        kv_cache = f"kv_{self.kv_cache_dtype}" if self.kv_cache_dtype else ""
        return "-".join(word for word in (self.backend, self.instruction_set, self.dtype, kv_cache) if word)

    def make(self, num_threads: int) -> Backend:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("HEADRACE_ISA", self.instruction_set)
            return make_backend(self.backend, num_threads, Precision(self.dtype, kv_cache_dtype=self.kv_cache_dtype))

    @property
    def rounds_rows(self) -> bool:
        """Whether rows, too, are rounded to bfloat16 before they are multiplied."""
        if self.dtype != "bfloat16":
            return False
        from headrace.backends.native.extension import native

        return native.rounds_rows(self.instruction_set)

    def as_stored(self, values: Float32) -> Float32:
        """What a matrix holds of these."""
        return round_to_bfloat16(values) if self.dtype == "bfloat16" else values

    def as_cached(self, heads: torch.Tensor) -> torch.Tensor:
        """What the KV cache holds of these float32 heads `[..., head_dim]`, in float64."""
        match self.kv_cache_dtype or self.dtype:
            case "float32":
                return heads.double()
            case "bfloat16":
                return heads.bfloat16().double()
            case "int8":
                scales = heads.abs().amax(-1, keepdim=True) / 127
                numbers = (heads / scales).round()
            case _:
                scales = heads.abs().amax(-1, keepdim=True) / 448
                numbers = (heads / scales).clamp(-448, 448).to(torch.float8_e4m3fn)
        return torch.where(scales >= torch.finfo(torch.float32).tiny, numbers.double() * scales.double(), 0.0)

    def as_multiplied(self, rows: Float32) -> Float32:
        """What a matrix is multiplied by."""
        return round_to_bfloat16(rows) if self.rounds_rows else rows


def round_to_bfloat16(values: Float32) -> Float32:
    """To the nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def _native() -> list[Implementation]:
    """With the instruction set that the environment names alone, if it names one (`make emulate`)."""
    if "native" not in INSTALLED_BACKENDS:
        return []
    from headrace.backends.native.extension import ISA_VARIABLE, native

    wanted = os.environ.get(ISA_VARIABLE)
    return [
        Implementation("native", dtype, instruction_set)
        for instruction_set in ([wanted] if wanted else native.instruction_sets())
        for dtype in ("float32", "bfloat16")
    ]


def _with_other_caches(implementation: Implementation) -> list[Implementation]:
    """In float32, and in bfloat16 where that is another arithmetic."""
    if implementation.dtype == "bfloat16":
        kept = ["int8", "fp8"] if implementation.rounds_rows else []
    elif implementation.backend == "native" and replace(implementation, dtype="bfloat16").rounds_rows:
        kept = ["int8", "fp8", "bfloat16"]
    else:
        kept = ["int8", "fp8"]
    return [replace(implementation, kv_cache_dtype=dtype) for dtype in kept]


IMPLEMENTATIONS = [*(Implementation(name) for name in INSTALLED_BACKENDS if name != "native"), *_native()]
OTHER_CACHES = [other for each in IMPLEMENTATIONS for other in _with_other_caches(each)]
QUANTIZED_CACHES = [each for each in OTHER_CACHES if each.kv_cache_dtype != "bfloat16"]
