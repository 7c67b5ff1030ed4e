"""A real server, as a user starts it, and the processes under it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0  # for what should take a second or two, on a machine that is busy


class Server:
    """`python -m headrace serve ...` on a free port. Reads stderr as it comes; ends only what it has started."""

    def __init__(
        self, *args: str, port: str = "0", env: dict[str, str] | None = None, folder: Path = REPOSITORY
    ) -> None:
        # Between the server and us, so that a test can take away the reader of its stderr.
        self._relay = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "serve", *args, "--port", port],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._relay.stdin,
            env=os.environ | (env or {}),
        )
        self._relay.stdin.close()
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._relay.stdout:
            self.lines.append(line.rstrip("\n"))

    def close_stderr(self) -> None:
        """From now on nobody reads what the server says."""
        self._relay.kill()
        self._reader.join(PATIENCE_S)

    @property
    def stderr(self) -> str:
        return "\n".join(self.lines)

    def wait_for_line(self, words: str) -> str:
        def find() -> str | None:
            return next((line for line in list(self.lines) if words in line), None)

        return wait_until(lambda: find() or self._fail_if_ended())

    def wait_ready(self) -> Server:
        self.url = self.wait_for_line("is ready at").rpartition(" ")[2].removesuffix("/v1")
        return self

    def _fail_if_ended(self) -> None:
        if self.process.poll() is not None and not self._reader.is_alive():
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.stderr}")

    def wait_end(self) -> int:
        status = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return status

    # ---- requests ----------------------------------------------------------------------------------------------------

    def get(self, path: str) -> tuple[int, str]:
        return self._call(urllib.request.Request(self.url + path))

    def post(self, path: str, body: object) -> tuple[int, dict]:
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        status, text = self._call(request)
        return status, json.loads(text)

    def _call(self, request: urllib.request.Request) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stream(self, path: str, body: object) -> Iterator[str]:
        """The `data:` payloads of a streamed answer, as they come."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            for line in reply:
                if line.startswith(b"data: "):
                    yield line[6:].decode().strip()

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        values = [line.rpartition(" ")[2] for line in self.get("/metrics")[1].splitlines() if line.startswith(name)]
        return sum(map(float, values))

    # ---- processes ---------------------------------------------------------------------------------------------------

    def processes(self) -> dict[str, int]:
        """Title to process id of the launcher and its living children."""
        pids = [self.process.pid, *children_of(self.process.pid)]
        return {title: pid for pid in pids if (title := title_of(pid))}

    def signal(self, signum: signal.Signals, title: str = "headrace-launcher") -> None:
        os.kill(self.processes()[title], signum)

    def close(self) -> None:
        pids = [self.process.pid, *children_of(self.process.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(PATIENCE_S)
        self._relay.wait()
        self._relay.stdout.close()


def talk(server: Server, *pieces: bytes) -> tuple[int, dict]:
    """Send these bytes as far as the server takes them. Returns the status and the body of its answer."""
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
        except OSError:
            pass  # it has answered and hung up
        answer = b""
        try:
            while piece := connection.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass  # what was still under way to it; its answer came first
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def wait_until(condition: Callable[[], T], patience: float = PATIENCE_S) -> T:
    """Call `condition` until it gives something true."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError("waited in vain")
        time.sleep(0.01)
    return value


def children_of(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def title_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Running, and not just waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
