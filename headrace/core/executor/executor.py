"""The face of an executor: what the engine core asks of its workers, one or many."""

from __future__ import annotations

from typing import Protocol, TypeVar

from headrace.contracts.model_runner import ModelRunnerOutput
from headrace.contracts.scheduler import SchedulerOutput

T_co = TypeVar("T_co", covariant=True)


class Future(Protocol[T_co]):
    """An answer that may still be under way. `result` waits for it, and raises what the worker raised."""

    def result(self) -> T_co: ...


class Executor(Protocol):
    """A step is two calls, so that a grammar's mask can be made while the forward runs."""

    def load_model(self) -> None:
        """Weights in place. Raises `StartupError`."""
        ...

    def initialize_kv_cache(self) -> int:
        """Allocate the KV cache and return its number of blocks."""
        ...

    def memory_plan(self) -> str:
        """Where the memory goes, as lines for the operator."""
        ...

    def execute_model(self, step: SchedulerOutput) -> Future[None]:
        """Run the forward pass of a step."""
        ...

    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        """Sample from the step that `execute_model` ran last."""
        ...

    def shutdown(self) -> None: ...
