"""Process A: the API server. Joins event loop, engine client, `AsyncLLM` and HTTP, and ends in good order.

The listening socket is inherited: connections queue up in the kernel from the launcher's first moment on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import traceback
from collections.abc import Coroutine, Iterator
from functools import partial
from pathlib import Path

import msgspec
import uvicorn
import uvloop

from headrace.config.resolved import ProcessConfig, ServerConfig
from headrace.contracts.lifecycle import ChildFailed, ChildReady, Drain, LauncherMessage, Listening, PeerDied
from headrace.errors import EngineDeadError, StartupError
from headrace.frontend.async_llm import AsyncLLM
from headrace.frontend.core_client.mp import AsyncMPClient
from headrace.frontend.http.app import build_app
from headrace.frontend.http.http_protocol import HTTPProtocol
from headrace.frontend.logs import ThroughputLog, configure_logging
from headrace.ipc.child import LauncherLink, become_child
from headrace.ipc.collector import calm_collector

logger = logging.getLogger("headrace.frontend.api_server")  # __name__ is "__main__" where this is the process

LOG_INTERVAL_S = 10.0
YOUNG = 10_000  # containers for the collector, to look through in 3 ms; requests leave no cycles
LAST_WORDS_S = 1.0  # for requests that cannot go on: time for the answers that say so to reach their clients


class HTTPServer(uvicorn.Server):
    """uvicorn, but signals are the launcher's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class APIServer:
    """One API server process. `run` returns the exit status."""

    def __init__(self, process: ProcessConfig, launcher: LauncherLink, sock: socket.socket) -> None:
        self._process = process
        self._launcher = launcher
        self._sock = sock
        self._exit_status = 0

    async def run(self) -> int:
        process, loop = self._process, asyncio.get_running_loop()
        client = AsyncMPClient(
            Path(process.run_dir), client_index=process.index, transport=process.config.server.ipc_transport
        )
        self._launcher.tell(Listening(client.endpoint))
        with self._launcher.phase("tokenizer"):
            self._client, self._llm = client, AsyncLLM(process.config, client)
        with self._launcher.phase("routes"):
            self._http = HTTPServer(http_settings(build_app(self._llm, process.config), process.config.server))
        self._tasks: set[asyncio.Task[None]] = set()
        self._launcher.listen(lambda message: loop.call_soon_threadsafe(self._on_launcher_message, message))
        self._spawn(self._watch_handshake())
        self._spawn(self._log_throughput())
        self._launcher.tell(ChildReady())
        calm_collector(YOUNG)
        try:
            await self._http.serve(sockets=[self._sock])
        finally:
            self._llm.shutdown()
        return self._exit_status

    def _on_launcher_message(self, message: LauncherMessage) -> None:
        if isinstance(message, Drain):
            self._spawn(self._drain(message.timeout))
        elif isinstance(message, PeerDied):
            self._spawn(self._give_up(message.message))

    async def _drain(self, timeout: float | None) -> None:
        """Take nothing new, let what runs finish (at most `timeout` seconds, then it ends with an error), and leave."""
        self._llm.start_draining()
        if not await self._is_idle_within(timeout):
            self._llm.cancel_all("The server is shutting down and cannot finish this request.")
            await self._is_idle_within(LAST_WORDS_S)
        self._http.should_exit = True

    async def _give_up(self, message: str) -> None:
        """The engine is gone: tell everybody who waits, and leave with a failure."""
        self._exit_status = 1
        self._client.mark_dead(message)
        await self._is_idle_within(LAST_WORDS_S)
        self._http.should_exit = True

    async def _is_idle_within(self, seconds: float | None) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._llm.wait_until_idle()
        except TimeoutError:
            return False
        return True

    async def _watch_handshake(self) -> None:
        """A handshake that fails ends the server: an engine core that speaks another protocol never answers."""
        try:
            await self._client.wait_ready()
        except EngineDeadError as error:
            self._launcher.tell(ChildFailed(error.message))
            await self._give_up(error.message)

    async def _log_throughput(self) -> None:
        log = ThroughputLog(self._llm.metrics)
        while True:
            await asyncio.sleep(LOG_INTERVAL_S)
            if line := log.line():
                logger.info(line)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def http_settings(app: object, server: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=partial(HTTPProtocol, client_timeout=server.client_timeout),  # type: ignore[arg-type]  # called like a class
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )


def main() -> None:
    launcher, (listen_fd,) = become_child(sys.argv)
    with launcher.phase("wait for configuration"):
        process = msgspec.msgpack.decode(launcher.receive_frame(), type=ProcessConfig)
    configure_logging(process.config.server.log_level, process.config.server.log_format)
    try:
        status = uvloop.run(APIServer(process, launcher, socket.socket(fileno=listen_fd)).run())
    except StartupError as error:
        launcher.tell(ChildFailed(error.message))
        sys.exit(1)
    except Exception as error:
        traceback.print_exc()
        launcher.tell(ChildFailed(f"{type(error).__name__}: {error}"))
        sys.exit(1)
    sys.exit(status)


if __name__ == "__main__":
    main()
