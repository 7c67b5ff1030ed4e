"""One worker, in the engine core's own process: no process C."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from headrace.config.import_string import load_by_name
from headrace.config.resolved import HeadraceConfig
from headrace.contracts.model_runner import ModelRunnerOutput
from headrace.contracts.scheduler import SchedulerOutput

T = TypeVar("T")

WORKER = "headrace.worker.worker:Worker"  # by name: the core does not import the worker


class Done(Generic[T]):
    """A future whose answer is there from the beginning."""

    def __init__(self, value: T) -> None:
        self._value = value

    def result(self) -> T:
        return self._value


class UniProcExecutor:
    """Every call runs to its end in the caller's thread."""

    def __init__(self, config: HeadraceConfig) -> None:
        self._worker: Any = load_by_name(WORKER)(config)

    def load_model(self) -> None:
        self._worker.load_model()

    def initialize_kv_cache(self) -> int:
        num_kv_blocks: int = self._worker.determine_num_kv_blocks()
        self._worker.initialize_kv_cache(num_kv_blocks)
        return num_kv_blocks

    def memory_plan(self) -> str:
        plan: str = self._worker.memory_plan()
        return plan

    def execute_model(self, step: SchedulerOutput) -> Done[None]:
        self._worker.execute_model(step)
        return Done(None)

    def sample_tokens(self) -> Done[ModelRunnerOutput]:
        return Done(self._worker.sample_tokens())

    def shutdown(self) -> None:
        self._worker.close()
