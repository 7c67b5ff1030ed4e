"""Process B: an engine core with its sockets.

Two threads, joined by a queue and nothing else. The input thread decodes requests (and hashes their prompts), and the
main thread runs the busy loop: take messages, step, send outputs. With nothing to do it sleeps in the inbox, so an idle
engine uses no CPU. Sending never waits, and to wake a thread for it would cost more than it does.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from queue import Empty, SimpleQueue

import msgspec
import zmq

from headrace.config.import_string import load_by_name
from headrace.config.resolved import HeadraceConfig, ProcessConfig
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
    EngineCoreRequestType,
    UtilityCall,
)
from headrace.contracts.lifecycle import (
    ChildFailed,
    ChildReady,
    ConnectTo,
    Drain,
    Endpoint,
    EngineCoreReadyResponse,
    EngineHello,
    EngineInit,
    LauncherMessage,
    Report,
)
from headrace.core.engine_core import EngineCore, Refusal
from headrace.core.request import Request
from headrace.errors import ProtocolError, StartupError
from headrace.ipc.child import LauncherLink, become_child
from headrace.ipc.collector import calm_collector
from headrace.ipc.sockets import connect

HEARTBEAT_S = 1.0  # a working engine is never silent for longer, but for the duration of one step
READY_ADDRESS = "inproc://ready"
YOUNG = 100_000  # containers for the collector: more than any step makes and drops


class Stop:
    """In a queue: end now."""


class EngineCoreProc:
    """One engine core and its threads. `start`, then `run_busy_loop`."""

    def __init__(self, process: ProcessConfig, launcher: LauncherLink) -> None:
        self.config: HeadraceConfig = process.config
        self.engine_index = process.index
        self.incarnation = secrets.randbits(48)
        self._launcher = launcher
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._frontend: SimpleQueue[Endpoint] = SimpleQueue()
        self._inbox: SimpleQueue[EngineInit | Request | Refusal | list[str] | UtilityCall | Exception | Stop] = (
            SimpleQueue()
        )
        self._clients: dict[int, zmq.Socket[bytes]] = {}  # where their outputs go
        self._outputs = outputs_codec()
        self._last_word = time.monotonic()
        self._stopping = False
        self._ready_socket = self._context.socket(zmq.PAIR)
        self._ready_socket.bind(READY_ADDRESS)
        executor = load_by_name(self.config.worker.executor)(self.config)
        self.core = EngineCore(self.config, executor, engine_index=self.engine_index, incarnation=self.incarnation)
        self._input_thread = threading.Thread(target=self._guard_input, name="input", daemon=True)

    # ---- start -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Load, allocate, and report ready to the front end and the launcher. Raises `StartupError`."""
        self._launcher.listen(self._on_launcher_message)
        self._input_thread.start()
        with self._launcher.phase("load model"):
            self.core.executor.load_model()
        with self._launcher.phase("allocate KV cache"):
            self.core.start()
        self._launcher.tell(Report(self.core.executor.memory_plan()))
        ready = EngineCoreReadyResponse(
            self.engine_index,
            self.incarnation,
            self.core.num_kv_blocks,
            self.config.cache.block_size,
            self.config.model.max_model_len,
        )
        self._ready_socket.send(handshake_codec().encode(ready))
        self._launcher.tell(ChildReady())

    def _on_launcher_message(self, message: LauncherMessage) -> None:
        if isinstance(message, ConnectTo):
            self._frontend.put(message.endpoint)
        elif isinstance(message, Drain):
            self._inbox.put(Stop())

    # ---- the busy loop -----------------------------------------------------------------------------------------------

    def run_busy_loop(self) -> None:
        """Step while there is work, sleep while there is none, end when told to: the front end is gone by then, and
        nobody waits for what still runs."""
        core = self.core
        check_idle = core.scheduler.check if self.config.scheduler.check_invariants else lambda: None
        while not self._stopping:
            if not core.has_work:
                check_idle()
            self._take_messages(wait=not core.has_work)
            self._send(core.take_pending())
            if core.scheduler.has_work and not self._stopping:
                self._send(core.step(self._take_messages))
                if time.monotonic() - self._last_word > HEARTBEAT_S:
                    self._send(dict.fromkeys(self._clients, core.heartbeat()))
        core.executor.shutdown()

    def _take_messages(self, *, wait: bool = False) -> None:
        """Act on everything in the inbox; with `wait`, on at least one message."""
        try:
            while True:
                message = self._inbox.get(wait)
                wait = False
                if isinstance(message, Request | Refusal):
                    self.core.add_request(message)
                elif isinstance(message, list):
                    self.core.abort_requests(message)
                elif isinstance(message, UtilityCall):
                    self._send({message.client_index: self.core.call_utility(message)})
                elif isinstance(message, EngineInit):
                    self._clients[message.client_index] = connect(self._context, zmq.PUSH, message.outputs)
                elif isinstance(message, Stop):
                    self._stopping = True
                else:
                    raise message
        except Empty:
            pass

    def _send(self, outputs: Mapping[int, EngineCoreOutputs]) -> None:
        """By client. The address of a client comes before its first request."""
        for client_index, message in outputs.items():
            sock = self._clients.get(client_index)
            if sock is not None:
                sock.send(self._outputs.encode(message))
            self._last_word = time.monotonic()

    # ---- the input thread --------------------------------------------------------------------------------------------

    def _guard_input(self) -> None:
        """A failure is the whole process's: an engine that hears nothing must not look alive."""
        try:
            self._run_input()
        except Exception as error:
            self._inbox.put(error)

    def _run_input(self) -> None:
        """Say hello, pass on the word that we are ready, and then turn frames into messages for the busy loop."""
        handshake, init = handshake_codec(), init_codec()
        requests, aborts, utilities = request_codec(), abort_codec(), utility_codec()
        sock = connect(self._context, zmq.DEALER, self._frontend.get(), identity=b"engine-%d" % self.engine_index)
        sock.send(handshake.encode(EngineHello(PROTOCOL_VERSION, self.engine_index, self.incarnation)))
        ready = self._context.socket(zmq.PAIR)
        ready.connect(READY_ADDRESS)
        poller = zmq.Poller()
        poller.register(sock, zmq.POLLIN)
        poller.register(ready, zmq.POLLIN)
        while True:
            if ready in dict(poller.poll()):
                sock.send(ready.recv())
                poller.unregister(ready)
                continue
            kind, payload = split_frames(sock.recv_multipart())
            try:
                if kind == EngineCoreRequestType.ADD:
                    self._inbox.put(self.core.prepare(requests.decode(payload)))
                elif kind == EngineCoreRequestType.ABORT:
                    self._inbox.put(aborts.decode(payload))
                elif kind == EngineCoreRequestType.UTILITY:
                    self._inbox.put(utilities.decode(payload))
                elif kind == EngineCoreRequestType.INIT:
                    self._inbox.put(init.decode(payload))
                else:
                    raise ProtocolError(f"a message of unknown kind {kind[:8]!r}")
            except ProtocolError as error:
                print(f"headrace-core-{self.engine_index}: dropped a message: {error}", file=sys.stderr, flush=True)


def split_frames(frames: list[bytes]) -> tuple[bytes, bytes]:
    """A message is two frames, kind and payload. Anything else comes back as a kind that nobody knows."""
    return (frames[0], frames[1]) if len(frames) == 2 else (b"", b"")


def main() -> None:
    launcher, _ = become_child(sys.argv)
    with launcher.phase("wait for configuration"):
        process = msgspec.msgpack.decode(launcher.receive_frame(), type=ProcessConfig)
    try:
        with launcher.phase("import backend"):
            proc = EngineCoreProc(process, launcher)
        proc.start()
        calm_collector(YOUNG)
        proc.run_busy_loop()
    except StartupError as error:
        launcher.tell(ChildFailed(error.message))
        sys.exit(1)
    except Exception as error:
        traceback.print_exc()
        launcher.tell(ChildFailed(f"{type(error).__name__}: {error}"))
        sys.exit(1)


if __name__ == "__main__":
    main()
