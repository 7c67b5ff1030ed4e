"""What a KV cache of 8 bits holds of a head: numbers of a type, and the scale that they are multiples of.

One scale for each token and head, float32, so that a token's keys and values depend on that token alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class KVType:
    dtype: np.dtype[Any]
    largest: float  # what the largest element of a head becomes

    def quantize(self, heads: Float32) -> tuple[NDArray[Any], Float32]:
        """`[..., head_dim]` -> numbers of the same shape, to the nearest, ties to even; and scales `[...]`.

        A head of zeros, or of hardly more, has the scale 0; one with an element that is not finite has none: NaN.
        """
        scales = np.abs(heads).max(axis=-1) / np.float32(self.largest)
        scales[scales < np.finfo(np.float32).tiny] = 0
        scales[~np.isfinite(heads).all(axis=-1)] = np.nan
        divisors = scales[..., None]
        multiples = np.divide(heads, divisors, out=np.zeros_like(heads), where=divisors > 0)
        if self.dtype.kind == "i":
            np.rint(multiples, out=multiples)
        # Division may have rounded the largest one up.
        return np.clip(multiples, -self.largest, self.largest).astype(self.dtype), scales


# fp8 is e4m3 without infinities: Open Compute Project, OCP 8-bit Floating Point Specification (OFP8), 2023.
KV_TYPES = {
    "int8": KVType(np.dtype(np.int8), 127.0),
    "fp8": KVType(np.dtype(ml_dtypes.float8_e4m3fn), 448.0),
}
