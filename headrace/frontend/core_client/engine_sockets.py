"""A front end's end of the sockets to one engine core: addresses, handshake, frames. Waiting is left to the owner."""

from __future__ import annotations

import contextlib
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
)
from headrace.contracts.lifecycle import EngineCoreReadyResponse, EngineHello, EngineInit
from headrace.errors import EngineDeadError, ProtocolError
from headrace.ipc.sockets import Keys, bind

T = TypeVar("T")

logger = logging.getLogger(__name__)


class EngineSockets:
    """For one thread. Nothing here blocks: `input` and `output` are to be waited for, and then read until empty."""

    def __init__(self, run_dir: Path, *, client_index: int, transport: str) -> None:
        """Bind. `endpoint` is where the engine core has to connect to."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        keys = Keys.generate() if transport == "tcp" else None
        self.input, self.endpoint = bind(self._context, zmq.ROUTER, run_dir, f"input-{client_index}", keys)
        self.input.router_mandatory = True  # a message to an engine that is gone is an error, not lost in silence
        self.output, self._output_endpoint = bind(self._context, zmq.PULL, run_dir, f"output-{client_index}", keys)
        self._client_index = client_index
        self._engine: bytes | None = None  # its socket identity, once it has said hello
        self._incarnation: int | None = None
        self._handshakes, self._inits, self._received = handshake_codec(), init_codec(), outputs_codec()
        self._requests, self._aborts, self._utilities = request_codec(), abort_codec(), utility_codec()

    def send_request(self, request: EngineCoreRequest) -> None:
        """This and the other ways to send raise `EngineDeadError` if no engine core is there."""
        self._send(EngineCoreRequestType.ADD, self._requests.encode(request))

    def send_abort(self, request_ids: list[str]) -> None:
        self._send(EngineCoreRequestType.ABORT, self._aborts.encode(request_ids))

    def send_call(self, call: UtilityCall) -> None:
        self._send(EngineCoreRequestType.UTILITY, self._utilities.encode(call))

    def read_handshakes(self) -> EngineCoreReadyResponse | None:
        """Answer an engine core that says hello; returns its word that it is ready, if that has come.

        Raises `EngineDeadError` if it speaks another protocol."""
        ready = None
        for frames in _receive_all(self.input.recv_multipart):
            with _dropping_foreign_bytes():
                message = self._handshakes.decode(frames[-1])
                if isinstance(message, EngineHello):
                    self._greet(frames[0], message)
                elif message.incarnation == self._incarnation:
                    ready = message
        return ready

    def read_outputs(self) -> Iterator[EngineCoreOutputs]:
        """What our engine core has said since the last time."""
        for data in _receive_all(self.output.recv):
            with _dropping_foreign_bytes():
                outputs = self._received.decode(data)
                if outputs.incarnation == self._incarnation:  # else the last words of an engine that is no longer ours
                    yield outputs

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _send(self, kind: EngineCoreRequestType, payload: bytes) -> None:
        if self._engine is None:
            raise EngineDeadError("The engine is not there yet.")
        try:
            self.input.send_multipart([self._engine, kind, payload], zmq.NOBLOCK)
        except zmq.ZMQError:
            raise EngineDeadError("The engine cannot be reached.") from None

    def _greet(self, engine: bytes, hello: EngineHello) -> None:
        if hello.protocol_version != PROTOCOL_VERSION:
            raise EngineDeadError(
                f"The engine core speaks protocol {hello.protocol_version}, this front end {PROTOCOL_VERSION}."
            )
        self._engine, self._incarnation = engine, hello.incarnation
        self._send(
            EngineCoreRequestType.INIT, self._inits.encode(EngineInit(self._client_index, self._output_endpoint))
        )


@contextlib.contextmanager
def _dropping_foreign_bytes() -> Iterator[None]:
    """A message that is none is logged and dropped; those behind it must still be read."""
    try:
        yield
    except ProtocolError as error:
        logger.warning("dropped a message: %s", error)


def _receive_all(receive: Callable[[int], T]) -> Iterator[T]:
    """Everything that a socket has now."""
    while True:
        try:
            item = receive(zmq.NOBLOCK)
        except zmq.Again:
            return
        yield item
