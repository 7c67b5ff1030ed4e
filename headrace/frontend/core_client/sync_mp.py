"""An engine core in a process of its own, for a synchronous caller: what the launcher and `AsyncMPClient` do for a
server, without the event loop.

    caller  --control channel-->  headrace-core-0   its configuration in, its last word out, and each other's death
            --ZeroMQ----------->                    requests in, outputs out

The child ends with its parent, whatever ends that; a child that ends is an `EngineDeadError` for the call that waits.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from contextlib import ExitStack

import msgspec
import zmq

from headrace.config.resolved import HeadraceConfig, ProcessConfig
from headrace.contracts.codec import child_message_codec
from headrace.contracts.engine import EngineCoreOutputs, EngineCoreRequest
from headrace.contracts.lifecycle import ChildFailed, ConnectTo, Drain, EngineCoreReadyResponse
from headrace.errors import EngineDeadError, StartupError
from headrace.frontend.core_client.engine_sockets import EngineSockets
from headrace.ipc.child_process import STOP_S, Child
from headrace.ipc.run_dir import run_dir

ENGINE_CORE = "headrace.core.engine_core_proc"  # by name: the front end does not import the core
NAME = "headrace-core-0"


class SyncMPClient:
    """For one thread, which must live as long as the engine is needed: the kernel ends a child with the thread that
    started it."""

    def __init__(self, config: HeadraceConfig) -> None:
        """Start the engine core; it loads its model meanwhile, until `wait_ready`. Raises `StartupError`."""
        self._dead: str | None = None
        self._ready: EngineCoreReadyResponse | None = None
        self._outputs: deque[EngineCoreOutputs] = deque()
        self._unfinished: set[str] = set()
        self._child_messages = child_message_codec()
        with ExitStack() as stack:
            folder = stack.enter_context(run_dir())
            self._sockets = EngineSockets(folder, client_index=0, transport=config.server.ipc_transport)
            stack.callback(self._sockets.close)
            self._child = Child(NAME, ENGINE_CORE)
            stack.callback(self._child.channel.close)
            stack.callback(self._child.kill)
            process = ProcessConfig(config=config, run_dir=str(folder), index=0)
            self._child.channel.send(msgspec.msgpack.encode(process))
            self._child.send(ConnectTo(self._sockets.endpoint))
            # Also when this object is forgotten, or when the interpreter ends.
            self._close = weakref.finalize(self, close_in_process, os.getpid(), stack.pop_all())
        self._poller = zmq.Poller()
        for source in (self._sockets.input, self._sockets.output, self._child.channel.fileno()):
            self._poller.register(source, zmq.POLLIN)

    def wait_ready(self) -> EngineCoreReadyResponse:
        """Wait until the model is loaded. Raises `StartupError` with the root cause if it cannot be."""
        try:
            while self._ready is None:
                self._wait()
        except EngineDeadError as error:
            raise StartupError(error.message) from None
        return self._ready

    # ---- EngineCoreClient --------------------------------------------------------------------------------------------

    def add_request(self, request: EngineCoreRequest) -> None:
        """Raises `EngineDeadError` if the engine is gone."""
        self._check_alive()
        self._sockets.send_request(request)
        self._unfinished.add(request.request_id)

    def abort_requests(self, request_ids: list[str]) -> None:
        self._unfinished.difference_update(request_ids)
        if self._dead is None and request_ids:
            with contextlib.suppress(EngineDeadError):  # with the engine they are over, too
                self._sockets.send_abort(request_ids)

    def get_output(self) -> EngineCoreOutputs:
        """Wait until the engine has something to report; an empty message if nothing is left to do.

        Raises `EngineDeadError` if it is gone, and nothing that it has said is left."""
        while not self._outputs:
            if not self._unfinished:
                return EngineCoreOutputs(0, 0, [])
            self._wait()
        outputs = self._outputs.popleft()
        self._unfinished.difference_update(
            output.request_id for output in outputs.outputs if output.finish_reason is not None
        )
        return outputs

    def has_unfinished_requests(self) -> bool:
        return bool(self._unfinished)

    def shutdown(self) -> None:
        """End the engine core, and wait for its end."""
        if self._close.alive:
            self._child.send(Drain())
            self._child.wait(STOP_S)
            self._close()
        self._dead = self._dead or "The engine was shut down."

    # ---- what comes --------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait until something comes, and take it in. Raises `EngineDeadError` if the engine is gone."""
        self._check_alive()
        came = dict(self._poller.poll())
        if self._sockets.input in came:
            self._ready = self._sockets.read_handshakes() or self._ready
        if self._sockets.output in came:
            self._outputs += self._sockets.read_outputs()
        elif self._child.channel.fileno() in came:  # with no output left, so that none is lost at the engine's end
            self._read_channel()

    def _read_channel(self) -> None:
        frame = self._child.channel.receive()
        if frame is None:
            self._dead = self._child.cause_of_death()
            self._check_alive()
        else:
            message = self._child_messages.decode(frame)
            if isinstance(message, ChildFailed):
                self._child.failure = message.message

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(self._dead)


def close_in_process(pid: int, resources: ExitStack) -> None:
    """A fork of the process that started the engine must leave it alone."""
    if os.getpid() == pid:
        resources.close()
