"""Random numbers without state: each is a function of a request's seed and the position in its output.

So the token at an output position is the same whether the request ran alone, in a batch, or was preempted and resumed.
Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011 (Philox4x32-10).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Uint64 = NDArray[np.uint64]

ROUNDS = 10
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_32, _16 = np.uint64(32), np.uint64(16)


def uniform(seeds: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in (0, 1) for each pair of a seed (any int64) and an output position (from 0): `[n]`, `[n]` -> `[n]`.

    48 bits, so that neither the number nor its product with a sum rounds to the bounds.
    """
    key = seeds.view(np.uint64)
    position = positions.astype(np.uint64)
    zero = np.zeros_like(position)
    high, low, _, _ = philox(
        (position & _LOW, position >> _32, zero, zero),
        (key & _LOW, key >> _32),
    )
    bits = (high << _16) | (low >> _16)
    return (bits.astype(np.float64) + 0.5) * 2.0**-48


def philox(
    counter: tuple[Uint64, Uint64, Uint64, Uint64], key: tuple[Uint64, Uint64]
) -> tuple[Uint64, Uint64, Uint64, Uint64]:
    """Philox4x32-10: four 32-bit words from a counter of four and a key of two, each in a uint64 array."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (
            (product_1 >> _32) ^ c1 ^ k0,
            product_1 & _LOW,
            (product_0 >> _32) ^ c3 ^ k1,
            product_0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL_0) & _LOW, (k1 + _WEYL_1) & _LOW
    return c0, c1, c2, c3
