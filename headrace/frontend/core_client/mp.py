"""An engine core in another process, reached over ZeroMQ, for an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import zmq

from headrace.contracts.codec import (
    abort_codec,
    handshake_codec,
    init_codec,
    outputs_codec,
    request_codec,
    utility_codec,
)
from headrace.contracts.engine import (
    PROTOCOL_VERSION,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
    UtilityCall,
    UtilityOutput,
)
from headrace.contracts.lifecycle import EngineCoreReadyResponse, EngineHello, EngineInit
from headrace.errors import EngineDeadError, EngineError, ProtocolError
from headrace.ipc.sockets import Keys, bind

T = TypeVar("T")

logger = logging.getLogger(__name__)
UtilityResult = bool | int | str | None


class AsyncMPClient:
    """The front end's end of the sockets. Everything runs in the event loop's thread; sockets are read when their file
    descriptor says so. ZeroMQ's descriptor is edge-triggered: after each event, and after each send on a socket that
    also receives, it has to be read until it is empty."""

    def __init__(self, run_dir: Path, *, client_index: int, transport: str) -> None:
        """Bind. Must be called with a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        keys = Keys.generate() if transport == "tcp" else None
        self._input, self.endpoint = bind(self._context, zmq.ROUTER, run_dir, f"input-{client_index}", keys)
        self._input.router_mandatory = True  # a message to an engine that is gone is an error, not lost in silence
        self._output, self._output_endpoint = bind(self._context, zmq.PULL, run_dir, f"output-{client_index}", keys)
        self._client_index = client_index
        self._engine: bytes | None = None  # its socket identity, once it has said hello
        self._incarnation: int | None = None
        self._ready: asyncio.Future[EngineCoreReadyResponse] = self._loop.create_future()
        self._dead: str | None = None
        self._outputs: asyncio.Queue[EngineCoreOutputs | None] = asyncio.Queue()
        self._calls: dict[int, asyncio.Future[UtilityResult]] = {}
        self._call_ids = itertools.count()
        self._handshakes, self._inits, self._received = handshake_codec(), init_codec(), outputs_codec()
        self._requests, self._aborts, self._utilities = request_codec(), abort_codec(), utility_codec()
        self._loop.add_reader(self._input.fileno(), self._read_handshakes)
        self._loop.add_reader(self._output.fileno(), self._read_outputs)

    # ---- AsyncEngineCoreClient ---------------------------------------------------------------------------------------

    @property
    def ready(self) -> EngineCoreReadyResponse | None:
        return self._ready.result() if self._ready.done() and self._ready.exception() is None else None

    async def wait_ready(self) -> EngineCoreReadyResponse:
        return await asyncio.shield(self._ready)

    def add_request(self, request: EngineCoreRequest) -> None:
        self._send(EngineCoreRequestType.ADD, self._requests.encode(request))

    def abort_requests(self, request_ids: list[str]) -> None:
        if self._dead is None:
            self._send(EngineCoreRequestType.ABORT, self._aborts.encode(request_ids))

    async def get_output(self) -> EngineCoreOutputs:
        outputs = await self._outputs.get()
        if outputs is None:
            self._outputs.put_nowait(None)  # for the next one who asks
            raise EngineDeadError(self._dead or "The engine is gone.")
        return outputs

    async def call_utility(self, method: str) -> UtilityResult:
        call = UtilityCall(next(self._call_ids), self._client_index, method)
        answer: asyncio.Future[UtilityResult] = self._loop.create_future()
        self._calls[call.call_id] = answer
        try:
            self._send(EngineCoreRequestType.UTILITY, self._utilities.encode(call))
            return await answer
        finally:
            del self._calls[call.call_id]

    def shutdown(self) -> None:
        self._loop.remove_reader(self._input.fileno())
        self._loop.remove_reader(self._output.fileno())
        self._context.destroy(linger=0)

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

    # ---- sockets -----------------------------------------------------------------------------------------------------

    def _send(self, kind: EngineCoreRequestType, payload: bytes) -> None:
        if self._dead is not None or self._engine is None:
            raise EngineDeadError(self._dead or "The engine is not there yet.")
        try:
            self._input.send_multipart([self._engine, kind, payload], zmq.NOBLOCK)
        except zmq.ZMQError:
            raise EngineDeadError("The engine cannot be reached.") from None
        self._read_handshakes()

    def _read_handshakes(self) -> None:
        for frames in receive_all(self._input.recv_multipart):
            with dropping_foreign_bytes():
                message = self._handshakes.decode(frames[-1])
                if isinstance(message, EngineHello):
                    self._greet(frames[0], message)
                elif message.incarnation == self._incarnation and not self._ready.done():
                    self._ready.set_result(message)

    def _greet(self, engine: bytes, hello: EngineHello) -> None:
        if hello.protocol_version != PROTOCOL_VERSION:
            self.mark_dead(
                f"The engine core speaks protocol {hello.protocol_version}, this front end {PROTOCOL_VERSION}."
            )
            return
        self._engine, self._incarnation = engine, hello.incarnation
        self._send(
            EngineCoreRequestType.INIT, self._inits.encode(EngineInit(self._client_index, self._output_endpoint))
        )

    def _read_outputs(self) -> None:
        for data in receive_all(self._output.recv):
            with dropping_foreign_bytes():
                outputs = self._received.decode(data)
                if outputs.incarnation != self._incarnation:
                    continue  # the last words of an engine that is no longer ours
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


@contextlib.contextmanager
def dropping_foreign_bytes() -> Iterator[None]:
    """A message that is none is logged and dropped; those behind it must still be read."""
    try:
        yield
    except ProtocolError as error:
        logger.warning("dropped a message: %s", error)


def receive_all(receive: Callable[[int], T]) -> Iterator[T]:
    """Everything that a socket has now."""
    while True:
        try:
            item = receive(zmq.NOBLOCK)
        except zmq.Again:
            return
        yield item
