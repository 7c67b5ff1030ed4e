"""The faces of an engine core, as the front end sees them."""

from __future__ import annotations

from typing import Protocol

from headrace.contracts.engine import EngineCoreOutputs, EngineCoreRequest
from headrace.contracts.lifecycle import EngineCoreReadyResponse


class EngineCoreClient(Protocol):
    """Synchronous: the caller's thread does the work."""

    def add_request(self, request: EngineCoreRequest) -> None:
        """Hand over one request. Its answer, a refusal included, comes from `get_output`."""
        ...

    def abort_requests(self, request_ids: list[str]) -> None:
        """End these requests; ids that are unknown or already over are ignored."""
        ...

    def get_output(self) -> EngineCoreOutputs:
        """Work until there is something to report, or nothing is left to do; then the message is empty."""
        ...

    def has_unfinished_requests(self) -> bool: ...

    def shutdown(self) -> None: ...


class AsyncEngineCoreClient(Protocol):
    """For an event loop: nothing here blocks it. All methods are called from the loop's thread."""

    @property
    def ready(self) -> EngineCoreReadyResponse | None:
        """What the engine core found out while it started; None until it is up."""
        ...

    async def wait_ready(self) -> EngineCoreReadyResponse:
        """Wait for the engine core. Raises `EngineDeadError` if it dies first."""
        ...

    def add_request(self, request: EngineCoreRequest) -> None:
        """Send one request. Raises `EngineDeadError` if the engine is gone."""
        ...

    def abort_requests(self, request_ids: list[str]) -> None:
        """End these requests; idempotent, and harmless for ids that are unknown or already over."""
        ...

    async def get_output(self) -> EngineCoreOutputs:
        """The next message of the engine core. Raises `EngineDeadError` when there will be none."""
        ...

    async def call_utility(self, method: str) -> bool | int | str | None:
        """Call a method of the engine core's closed table and wait for its result."""
        ...

    def shutdown(self) -> None: ...
