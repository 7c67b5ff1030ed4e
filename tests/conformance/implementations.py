"""All that the suite holds to the truth: each backend, in each dtype, with each instruction set of this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.model.ops import Backend
from headrace.worker.backends import make_backend
from tests.installed_backends import INSTALLED_BACKENDS

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Implementation:
    backend: str
    dtype: str = "float32"
    instruction_set: str = ""  # of the native backend

    def __str__(self) -> str:
        return "-".join(word for word in (self.backend, self.instruction_set, self.dtype) if word)

    def make(self, num_threads: int) -> Backend:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("HEADRACE_ISA", self.instruction_set)
            return make_backend(self.backend, num_threads, self.dtype)

    @property
    def rounds_rows(self) -> bool:
        """Whether rows, too, are rounded to bfloat16 before they are multiplied."""
        if self.dtype != "bfloat16":
            return False
        from headrace.backends.native.extension import native

        return native.rounds_rows(self.instruction_set)

    def as_stored(self, values: Float32) -> Float32:
        """What a matrix, or the KV cache, holds of these."""
        return round_to_bfloat16(values) if self.dtype == "bfloat16" else values

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


IMPLEMENTATIONS = [*(Implementation(name) for name in INSTALLED_BACKENDS if name != "native"), *_native()]
