"""The numpy backend: its faces put together, and its hold on BLAS."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from headrace.backends.numpy.blas import Blas
from headrace.backends.numpy.memory import NumpyMemory
from headrace.backends.numpy.ops import NumpyOps, NumpyStep
from headrace.backends.numpy.sampler import NumpySampler
from headrace.backends.numpy.threads import ThreadPool
from headrace.model.ops import EXACT, Activation, AttentionSpec, Ops, Precision, Step, StepInputs, StepShape


class NumpyBackend:
    instruction_set = None  # BLAS chooses for itself

    def __init__(self, num_threads: int, precision: Precision = EXACT) -> None:
        """Whatever `precision` says, everything is float32, but for a KV cache of "int8" or "fp8": this backend is the
        truth that others are measured by."""
        self._pool = ThreadPool(num_threads)
        self._blas = Blas(num_threads)
        self.memory = NumpyMemory(precision.kv_cache_dtype)
        self.ops = NumpyOps(self.memory, self._pool, self._blas)
        self.sampler = NumpySampler()

    def capture(
        self, forward: Callable[[Ops, Step], Activation], layers: Sequence[AttentionSpec], shape: StepShape
    ) -> EagerGraph:
        return EagerGraph(self, forward)

    def begin_step(self, inputs: StepInputs) -> NumpyStep:
        return NumpyStep(inputs, self.memory.block_size, self._pool.num_threads)

    @contextmanager
    def running(self) -> Iterator[None]:
        """One BLAS thread: ours are outside of it, and a product's bits must not depend on its number of threads."""
        with self._blas.single_threaded():
            yield

    def close(self) -> None:
        self._pool.close()


class EagerGraph:
    """A forward that is called anew for each step."""

    def __init__(self, backend: NumpyBackend, forward: Callable[[Ops, Step], Activation]) -> None:
        self._backend = backend
        self._forward = forward

    def replay(self, inputs: StepInputs) -> Activation:
        # its ops get back the very step that they made
        return self._forward(cast(Ops, self._backend.ops), self._backend.begin_step(inputs))
