"""An engine core in another process, reached over ZeroMQ, for an event loop."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from headrace.contracts.engine import EngineCoreOutputs, EngineCoreRequest, UtilityCall, UtilityOutput
from headrace.contracts.lifecycle import EngineCoreReadyResponse
from headrace.errors import EngineDeadError, EngineError
from headrace.frontend.core_client.engine_sockets import EngineSockets

UtilityResult = bool | int | str | None


class AsyncMPClient:
    """Everything runs in the event loop's thread; sockets are read when their file descriptor says so. ZeroMQ's
    descriptor is edge-triggered: after each event, and after each send on a socket that also receives, it has to be
    read until it is empty."""

    def __init__(self, run_dir: Path, *, client_index: int, transport: str) -> None:
        """Bind. Must be called with a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._sockets = EngineSockets(run_dir, client_index=client_index, transport=transport)
        self.endpoint = self._sockets.endpoint
        self._client_index = client_index
        self._ready: asyncio.Future[EngineCoreReadyResponse] = self._loop.create_future()
        self._dead: str | None = None
        self._outputs: asyncio.Queue[EngineCoreOutputs | None] = asyncio.Queue()
        self._calls: dict[int, asyncio.Future[UtilityResult]] = {}
        self._call_ids = itertools.count()
        self._loop.add_reader(self._sockets.input.fileno(), self._read_handshakes)
        self._loop.add_reader(self._sockets.output.fileno(), self._read_outputs)

    # ---- AsyncEngineCoreClient ---------------------------------------------------------------------------------------

    @property
    def ready(self) -> EngineCoreReadyResponse | None:
        return self._ready.result() if self._ready.done() and self._ready.exception() is None else None

    async def wait_ready(self) -> EngineCoreReadyResponse:
        return await asyncio.shield(self._ready)

    def add_request(self, request: EngineCoreRequest) -> None:
        self._check_alive()
        self._sockets.send_request(request)
        self._read_handshakes()

    def abort_requests(self, request_ids: list[str]) -> None:
        if self._dead is None:
            self._sockets.send_abort(request_ids)
            self._read_handshakes()

    async def get_output(self) -> EngineCoreOutputs:
        outputs = await self._outputs.get()
        if outputs is None:
            self._outputs.put_nowait(None)  # for the next one who asks
            raise EngineDeadError(self._dead or "The engine is gone.")
        return outputs

    async def call_utility(self, method: str) -> UtilityResult:
        self._check_alive()
        call = UtilityCall(next(self._call_ids), self._client_index, method)
        answer: asyncio.Future[UtilityResult] = self._loop.create_future()
        self._calls[call.call_id] = answer
        try:
            self._sockets.send_call(call)
            self._read_handshakes()
            return await answer
        finally:
            del self._calls[call.call_id]

    def shutdown(self) -> None:
        self._loop.remove_reader(self._sockets.input.fileno())
        self._loop.remove_reader(self._sockets.output.fileno())
        self._sockets.close()

    # ---- the engine's life -------------------------------------------------------------------------------------------

    def mark_dead(self, message: str) -> None:
        """The engine is gone: everybody who waits for it hears so now."""
        self._dead = message
        if not self._ready.done():
            self._ready.set_exception(EngineDeadError(message))
            self._ready.exception()  # read here: there may be nobody who waits
        for call in self._calls.values():
            if not call.done():
                call.set_exception(EngineDeadError(message))
        self._outputs.put_nowait(None)

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(self._dead)

    # ---- sockets -----------------------------------------------------------------------------------------------------

    def _read_handshakes(self) -> None:
        try:
            ready = self._sockets.read_handshakes()
        except EngineDeadError as error:
            self.mark_dead(error.message)
            return
        if ready is not None and not self._ready.done():
            self._ready.set_result(ready)

    def _read_outputs(self) -> None:
        for outputs in self._sockets.read_outputs():
            if outputs.utility_output is not None:
                self._settle(outputs.utility_output)
            else:
                self._outputs.put_nowait(outputs)

    def _settle(self, output: UtilityOutput) -> None:
        call = self._calls.get(output.call_id)
        if call is None or call.done():
            return
        if output.failure_message is not None:
            call.set_exception(EngineError(output.failure_message))
        else:
            call.set_result(output.result)
