from __future__ import annotations

import numpy as np
import pytest

from headrace.contracts.sampling_params import SEED_MAX, SEED_MIN
from headrace.model.sampling.random import philox, uniform


def words(*values: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([value], np.uint64) for value in values)


# Known answers of the Random123 distribution (examples/kat_vectors, philox4x32 10).
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert tuple(int(word[0]) for word in philox(words(*counter), words(*key))) == expected


def test_numbers_lie_inside_the_unit_interval_and_are_spread_evenly() -> None:
    positions = np.arange(20_000)
    numbers = uniform(np.full(20_000, 7), positions)
    assert 0 < numbers.min() < numbers.max() < 1
    assert np.abs(np.histogram(numbers, 10, (0, 1))[0] - 2000).max() < 200
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.02


def test_a_number_depends_on_its_own_seed_and_position_alone() -> None:
    seeds = np.array([SEED_MIN, -1, 0, 1, 2**32, SEED_MAX])
    positions = np.array([0, 5, 2**33, 1, 0, 8191])
    together = uniform(seeds, positions)
    assert len(set(together.tolist())) == len(seeds)
    for i in range(len(seeds)):
        assert uniform(seeds[i : i + 1], positions[i : i + 1])[0] == together[i]
