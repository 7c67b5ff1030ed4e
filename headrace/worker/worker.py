"""`Worker`: what the executor calls, in this order: load, measure, allocate; then two calls for each step."""

from __future__ import annotations

from headrace.config.resolved import HeadraceConfig
from headrace.contracts.model_runner import ModelRunnerOutput
from headrace.contracts.scheduler import SchedulerOutput
from headrace.errors import EngineError
from headrace.model.loader.checkpoint import open_checkpoint
from headrace.model.loader.loader import load_program, stored_types
from headrace.model.weights import Program
from headrace.worker.backends import make_backend, precision_of
from headrace.worker.graphs import capture_forward
from headrace.worker.memory import MemoryPlan, make_plan
from headrace.worker.model_runner import ModelRunner


class Worker:
    def __init__(self, config: HeadraceConfig) -> None:
        self._config = config
        self._backend = make_backend(config.worker.backend, config.worker.num_threads, precision_of(config))
        self._stored: dict[str, str] = {}  # how each part of a matrix is stored
        self._program: Program | None = None
        self._plan: MemoryPlan | None = None
        self._runner: ModelRunner | None = None

    def load_model(self) -> None:
        """Read and pack the weights. Raises `ModelFormatError` or `UnsupportedModelError`."""
        model = self._config.model
        checkpoint = open_checkpoint(model.facts, model.load_format, model.seed)
        self._stored = stored_types(model.facts, checkpoint)
        self._program = load_program(
            model.facts,
            checkpoint,
            self._backend.memory,
            num_positions=model.max_model_len,
            num_threads=self._config.worker.num_threads,
        )

    def determine_num_kv_blocks(self) -> int:
        """How many KV blocks this machine has room for. Raises `ConfigError` if not enough for one full request."""
        if self._program is None:
            raise EngineError("The model has to be loaded before its memory is planned.")
        self._plan = make_plan(self._config, self._backend, self._stored, weights_loaded=True)
        return self._plan.num_kv_blocks

    def memory_plan(self) -> str:
        """The plan of `determine_num_kv_blocks`, for the operator to read."""
        if self._plan is None:
            raise EngineError("The memory plan is made by determine_num_kv_blocks.")
        return self._plan.render()

    def initialize_kv_cache(self, num_kv_blocks: int) -> None:
        if self._program is None:
            raise EngineError("The model has to be loaded before its KV cache is allocated.")
        layers = self._program.attention_layers
        self._backend.memory.allocate_kv_cache(layers, num_kv_blocks, self._config.cache.block_size)
        self._runner = ModelRunner(
            self._config, self._backend, capture_forward(self._config, self._backend, self._program)
        )

    def execute_model(self, scheduled: SchedulerOutput) -> None:
        """Bring the rows up to date and compute the step; its tokens come from `sample_tokens`."""
        self._ready_runner.execute_model(scheduled)

    def sample_tokens(self) -> ModelRunnerOutput:
        return self._ready_runner.sample_tokens()

    def close(self) -> None:
        self._backend.close()

    @property
    def _ready_runner(self) -> ModelRunner:
        if self._runner is None:
            raise EngineError("The worker has no KV cache yet.")
        return self._runner
