"""The native backend: its faces put together."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from headrace.backends.native.extension import choose_instruction_set, native
from headrace.backends.native.graph import NativeGraph
from headrace.backends.native.memory import NativeMemory
from headrace.backends.native.ops import NativeOps, NativeStep
from headrace.backends.native.sampler import NativeSampler
from headrace.model.ops import EXACT, Activation, AttentionSpec, Ops, Precision, Step, StepInputs, StepShape


class NativeBackend:
    def __init__(self, num_threads: int, precision: Precision = EXACT) -> None:
        self.instruction_set = choose_instruction_set()
        self._progress = Progress()
        self._pool = native.Pool(num_threads, self._progress.address)
        self.memory = NativeMemory(num_threads, precision, self.instruction_set)
        self.ops = NativeOps(self.memory, self._pool, self.instruction_set)
        self.sampler = NativeSampler(self._pool, self.instruction_set)

    @property
    def progress(self) -> int:
        """Ops that were computed since the start."""
        return self._progress.count

    def capture(
        self, forward: Callable[[Ops, Step], Activation], layers: Sequence[AttentionSpec], shape: StepShape
    ) -> NativeGraph:
        return NativeGraph(forward, layers, shape, self.memory, self._pool, self.instruction_set)

    def begin_step(self, inputs: StepInputs) -> NativeStep:
        return NativeStep(inputs)

    @contextmanager
    def running(self) -> Iterator[None]:
        yield

    def close(self) -> None:
        self._pool.stop()
        self.memory.close()


class Progress:
    """A counter in memory that a child process would share: whoever watches a step can see whether it moves."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._counter = np.frombuffer(self._memory, np.uint64, 1)

    @property
    def address(self) -> int:
        return int(self._counter.ctypes.data)

    @property
    def count(self) -> int:
        return int(self._counter[0])
