"""Pages of memory are there before they are used."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import numpy as np

from headrace.backends.native.extension import native

MIB = 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def wait_for(populator: native.Populator) -> None:
    deadline = time.monotonic() + 60
    while not populator.is_done:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_all_pages_are_touched_and_nothing_is_changed():
    buffers = [native.Buffer(size) for size in (24 * MIB, 3 * MIB + 5, 0)]
    values = buffers[1].array()
    values[:] = np.arange(len(values), dtype=np.uint64).astype(np.uint8)
    expected = values.copy()
    before = resident_bytes()
    populator = native.Populator(buffers)
    assert not populator.is_done
    wait_for(populator)
    assert resident_bytes() - before >= 23 * MIB
    assert np.array_equal(values, expected)
    assert not buffers[0].array().any()


def test_it_ends_with_its_owner():
    populator = native.Populator([native.Buffer(64 * MIB)])
    before = resident_bytes()
    del populator
    assert resident_bytes() - before < 64 * MIB
