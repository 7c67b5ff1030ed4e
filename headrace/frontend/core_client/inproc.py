"""An engine core inside the front end's own process: no sockets, no threads. For offline use and tests."""

from __future__ import annotations

from typing import Any

from headrace.config.import_string import load_by_name
from headrace.config.resolved import HeadraceConfig
from headrace.contracts.engine import EngineCoreOutputs, EngineCoreRequest
from headrace.errors import EngineDeadError

ENGINE_CORE = "headrace.core.engine_core:EngineCore"  # by name: the front end does not import the core


class InprocClient:
    """`get_output` runs the engine in the caller's thread."""

    def __init__(self, config: HeadraceConfig) -> None:
        """Load the model and allocate the KV cache. Raises `StartupError`."""
        executor = load_by_name(config.worker.executor)(config)
        executor.load_model()
        self._engine_core: Any = load_by_name(ENGINE_CORE)(config, executor)
        self._engine_core.start()

    @property
    def engine_core(self) -> Any:
        """Raises `EngineDeadError` after `shutdown`."""
        if self._engine_core is None:
            raise EngineDeadError("The engine was shut down.")
        return self._engine_core

    def add_request(self, request: EngineCoreRequest) -> None:
        self.engine_core.add_request(self.engine_core.prepare(request))

    def abort_requests(self, request_ids: list[str]) -> None:
        if self._engine_core is not None:  # with the engine they are over, too
            self._engine_core.abort_requests(request_ids)

    def get_output(self) -> EngineCoreOutputs:
        """Run steps until one has something to report, or nothing is left to do (then the message is empty)."""
        engine_core = self.engine_core
        while engine_core.has_work:
            outputs = engine_core.take_pending() or engine_core.step()
            if outputs:
                only_client: EngineCoreOutputs = outputs[0]
                return only_client
        return EngineCoreOutputs(engine_core.engine_index, engine_core.incarnation, [])

    def has_unfinished_requests(self) -> bool:
        return self._engine_core is not None and bool(self._engine_core.has_work)

    def reset_prefix_cache(self) -> bool:
        return bool(self.engine_core.reset_prefix_cache())

    def shutdown(self) -> None:
        """Free the model and the KV cache."""
        if self._engine_core is not None:
            self._engine_core.executor.shutdown()
            self._engine_core = None
