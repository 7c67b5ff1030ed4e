"""An engine core inside the front end's own process: no sockets, no threads. For offline use and tests."""

from __future__ import annotations

import importlib
from typing import Any

from headrace.config.resolved import HeadraceConfig
from headrace.contracts.engine import EngineCoreOutputs, EngineCoreRequest

ENGINE_CORE = "headrace.core.engine_core:EngineCore"  # by name: the front end does not import the core


class InprocClient:
    """`get_output` runs the engine in the caller's thread."""

    def __init__(self, config: HeadraceConfig) -> None:
        """Load the model and allocate the KV cache. Raises `StartupError`."""
        executor = _import(config.worker.executor)(config)
        executor.load_model()
        self.engine_core: Any = _import(ENGINE_CORE)(config, executor)
        self.engine_core.start()

    def add_request(self, request: EngineCoreRequest) -> None:
        self.engine_core.add_request(self.engine_core.prepare(request))

    def abort_requests(self, request_ids: list[str]) -> None:
        self.engine_core.abort_requests(request_ids)

    def get_output(self) -> EngineCoreOutputs:
        """Run steps until one has something to report."""
        while True:
            outputs = self.engine_core.take_pending() or self.engine_core.step()
            if outputs:
                only_client: EngineCoreOutputs = outputs[0]
                return only_client

    def has_unfinished_requests(self) -> bool:
        return bool(self.engine_core.has_work)

    def reset_prefix_cache(self) -> bool:
        return bool(self.engine_core.reset_prefix_cache())

    def shutdown(self) -> None:
        self.engine_core.executor.shutdown()


def _import(import_string: str) -> Any:
    module, _, name = import_string.partition(":")
    return getattr(importlib.import_module(module), name)
