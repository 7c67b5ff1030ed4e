"""The numpy backend: its faces put together, and its hold on BLAS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.backends.numpy.attention import plan_units
from headrace.backends.numpy.blas import Blas
from headrace.backends.numpy.memory import NumpyMemory
from headrace.backends.numpy.ops import NumpyOps, NumpyStep
from headrace.backends.numpy.sampler import NumpySampler
from headrace.backends.numpy.threads import ThreadPool
from headrace.model.ops import StepInputs


class NumpyBackend:
    instruction_set = None  # BLAS chooses for itself

    def __init__(self, num_threads: int) -> None:
        self._pool = ThreadPool(num_threads)
        self._blas = Blas(num_threads)
        self.memory = NumpyMemory()
        self.ops = NumpyOps(self.memory, self._pool, self._blas)
        self.sampler = NumpySampler()

    def begin_step(self, inputs: StepInputs) -> NumpyStep:
        return NumpyStep(inputs, plan_units(inputs, self.memory.block_size, self._pool.num_threads))

    @contextmanager
    def running(self) -> Iterator[None]:
        """One BLAS thread: ours are outside of it, and a product's bits must not depend on its number of threads."""
        with self._blas.single_threaded():
            yield

    def close(self) -> None:
        self._pool.close()
