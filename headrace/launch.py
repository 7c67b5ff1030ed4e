"""The launcher: opens the listening socket, starts the processes, watches them, drains them.

    launcher  --control channel-->  headrace-api-0    (process A, frontend/api_server.py)
              --control channel-->  headrace-core-0   (process B, core/engine_core_proc.py)

In order: the socket is opened first, so that a client who comes early waits in the kernel's queue and is not refused.
Both children are started at once, and while they import, the configuration is resolved; it goes to each as the first
frame on its control channel. The API server binds its ZeroMQ sockets and says where; the launcher tells the engine
core. When both are ready, the table of phases and the memory plan are printed.

From then on it waits for three things. SIGTERM or SIGINT: the API server drains, then the engine core; exit status 0.
A second signal: everything is killed at once. A child that ends unasked: the cause goes to stderr, the others get a
moment for their last words and are killed; exit status 1. Of packages, only msgspec and setproctitle are imported.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from headrace.config.address import check_address
from headrace.config.engine_config import EngineConfig
from headrace.config.resolved import HeadraceConfig, ProcessConfig
from headrace.contracts.codec import child_message_codec
from headrace.contracts.lifecycle import (
    ChildFailed,
    ChildMessage,
    ChildReady,
    ConnectTo,
    Drain,
    Listening,
    PeerDied,
    Phase,
    Report,
)
from headrace.errors import ConfigError, StartupError
from headrace.ipc.child_process import STOP_S, Child
from headrace.ipc.run_dir import run_dir

API_SERVER = "headrace.frontend.api_server"
ENGINE_CORE = "headrace.core.engine_core_proc"

LAST_WORDS_S = 1.5  # a dead engine's API server has this long to tell its clients
BACKLOG = 2048


class Launcher:
    """One server, from the first socket to the exit status."""

    def __init__(self, settings: EngineConfig) -> None:
        self._settings = settings
        self._began = time.monotonic()
        self._phases: list[Phase] = []
        self._reports: list[str] = []
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._draining: Child | None = None  # the child that is being drained now
        self._deadline: float | None = None  # time.monotonic() by which it has to have ended

    def run(self) -> int:
        """Serve until told to stop; returns the exit status. Raises `StartupError` if it cannot start."""
        with contextlib.ExitStack() as stack:
            self._signals = stack.enter_context(signals_as_socket(signal.SIGTERM, signal.SIGINT))
            self._selector.register(self._signals, selectors.EVENT_READ)
            check_address(self._settings)
            self._run_dir = stack.enter_context(run_dir())
            stack.callback(self._kill_all)
            with open_listening_socket(self._settings.host, self._settings.port) as sock:
                self._address = sock.getsockname()
                self._api = self._start("headrace-api-0", API_SERVER, (sock.fileno(),))
                self._core = self._start("headrace-core-0", ENGINE_CORE)
            path = self._find_model()
            if isinstance(path, int):
                return path
            self._config = self._resolve(path)
            process = ProcessConfig(config=self._config, run_dir=str(self._run_dir), index=0)
            for child in self._children:
                child.channel.send(msgspec.msgpack.encode(process))
            return self._watch()

    # ---- start -------------------------------------------------------------------------------------------------------

    def _start(self, name: str, module: str, extra_fds: tuple[int, ...] = ()) -> Child:
        began = time.monotonic()
        child = Child(name, module, extra_fds)
        self._children.append(child)
        self._selector.register(child.channel, selectors.EVENT_READ, child)
        self._phases.append(Phase("launcher", f"start {name}", began, time.monotonic()))
        return child

    def _find_model(self) -> Path | int:
        """Where the model lies, once it is downloaded; or the exit status, if a signal came before."""
        from headrace.config.model_files import find_model  # here, as the children are started by now

        began = time.monotonic()
        found = find_model(self._settings.model, self._settings.revision)
        if isinstance(found, Path):
            return found
        with found:
            while True:
                if self._signals.fileno() in select.select([self._signals.fileno(), found.fileno()], [], [])[0]:
                    return self._on_start_signal()
                path = found.take_reply()
                if path is not None:
                    self._phases.append(Phase("launcher", "ask the hub, download", began, time.monotonic()))
                    return path

    def _resolve(self, path: Path) -> HeadraceConfig:
        from headrace.config.resolve import resolve

        began = time.monotonic()
        config = resolve(self._settings, path)
        self._phases.append(Phase("launcher", "read model header, resolve settings", began, time.monotonic()))
        return config

    def _announce(self) -> None:
        host, port = self._address[:2]
        host = f"[{host}]" if ":" in host else host
        for line in [*phase_table(self._phases, self._began), *self._reports]:
            say(line)
        if self._settings.backend == "auto" and self._config.worker.backend == "numpy":
            say("no native kernels are installed, so numpy computes the model: exact, but slow (see docs/building.md)")
        say(f"{self._config.model.served_model_name} is ready at http://{host}:{port}/v1")

    # ---- watch -------------------------------------------------------------------------------------------------------

    def _watch(self) -> int:
        codec = child_message_codec()
        while True:
            events = self._selector.select(self._deadline and max(0.0, self._deadline - time.monotonic()))
            if not events and self._draining is not None:
                say(f"error: {self._draining.name} does not end")
                return 1
            for key, _ in events:
                if key.data is None:
                    status = self._on_signal()
                else:
                    child: Child = key.data
                    frame = child.channel.receive()
                    if frame is None:
                        status = self._on_end(child)
                    else:
                        status = None
                        self._on_message(child, codec.decode(frame))
                if status is not None:
                    return status

    def _on_message(self, child: Child, message: ChildMessage) -> None:
        if isinstance(message, Phase):
            self._phases.append(message)
        elif isinstance(message, Report):
            self._reports.append(message.text)
        elif isinstance(message, Listening):
            self._core.send(ConnectTo(message.endpoint))
        elif isinstance(message, ChildFailed):
            child.failure = message.message
        elif isinstance(message, ChildReady):
            child.is_ready = True
            if all(c.is_ready for c in self._children):
                self._announce()

    def _on_signal(self) -> int | None:
        if not all(child.is_ready for child in self._children):
            return self._on_start_signal()
        signum = self._signals.recv(1)[0]
        if self._draining is not None:
            say("stopping at once")
            return 128 + signum
        say("draining: no new requests; what runs may finish. Once more to stop at once")
        timeout = self._config.server.shutdown_timeout
        self._drain(self._api, timeout, None if timeout is None else timeout + STOP_S)
        return None

    def _on_start_signal(self) -> int:
        say("stopped while starting")
        return 128 + self._signals.recv(1)[0]

    def _drain(self, child: Child, timeout: float | None, deadline_s: float | None) -> None:
        """Tell a child to end; it is given up after `deadline_s` seconds."""
        self._draining = child
        self._deadline = None if deadline_s is None else time.monotonic() + deadline_s
        child.send(Drain(timeout))

    def _on_end(self, child: Child) -> int | None:
        """A control channel has reached its end, so its child is gone or going."""
        self._selector.unregister(child.channel)
        if self._draining is self._api and child is self._api:
            if child.wait(STOP_S) == 0:
                self._drain(self._core, None, STOP_S)
                return None
        elif self._draining is self._core and child is self._core and child.wait(STOP_S) == 0:
            say("stopped")
            return 0
        cause = child.cause_of_death()
        say(f"error: {cause}")
        if child is self._core:
            self._api.send(PeerDied("The engine has died."))
            self._api.wait(LAST_WORDS_S)
        return 1

    def _kill_all(self) -> None:
        for child in self._children:
            child.kill()
            child.channel.close()


@contextlib.contextmanager
def signals_as_socket(*signums: signal.Signals) -> Iterator[socket.socket]:
    """While inside, these signals arrive as bytes on a socket instead of interrupting anything."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    handlers = {signum: signal.signal(signum, lambda *_: None) for signum in signums}
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(previous)
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        reader.close()
        writer.close()


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Bind and listen. Raises `ConfigError` if the address cannot be had."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, address = found[0][0], found[0][4]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else "no such host"
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}", flag="--port") from None


def phase_table(phases: list[Phase], began: float) -> list[str]:
    """The start as a table: who did what, from when to when, in seconds after the command."""
    rows = [("process", "phase", "from", "to", "took")]
    for phase in sorted(phases, key=lambda phase: phase.began):
        start, end = phase.began - began, phase.ended - began
        rows.append((phase.process, phase.name, f"{start:.2f}", f"{end:.2f}", f"{end - start:.2f} s"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def say(line: str) -> None:
    """To the operator, if there is still one who reads: a closed stderr must not stop a drain."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"headrace: {line}\n" if "\n" not in line else f"{line}\n")
        sys.stderr.flush()


def launch(settings: EngineConfig) -> int:
    """Run a server; the exit status. What a user has to know about a failed start is on stderr."""
    from setproctitle import setproctitle

    setproctitle("headrace-launcher")
    try:
        return Launcher(settings).run()
    except StartupError as error:
        say(f"error: {error.message}")
        return 1
