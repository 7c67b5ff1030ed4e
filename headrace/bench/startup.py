"""`headrace bench startup`: from the command to the first token, some cold processes in a row, and where the time goes.

The page cache is warm from the first start on. The request is there before the server is: it waits in the kernel's
queue from when the launcher has opened its socket.
"""

from __future__ import annotations

import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec

from headrace.bench.report import WIDTH, Report, cell, changed_settings, kernels
from headrace.config.engine_config import EngineConfig
from headrace.errors import StartupError

BODY = msgspec.json.encode({"prompt": "Hello", "max_tokens": 1, "temperature": 0})
LOOK_S = 0.005  # between two tries to connect, before the launcher has opened its socket
STOP_S = 10.0
PATIENCE_S = 600.0  # of one request: a large model takes its time

# A row of the table that the launcher prints: process, phase, from, to, took.
_ROW = re.compile(r"headrace: (?P<process>\S+)  +(?P<phase>.+?)  +(?P<began>[\d.]+)  +(?P<ended>[\d.]+)  +[\d.]+ s")


class Phase(msgspec.Struct, frozen=True):
    """Of one start. Seconds after the launcher began."""

    process: str
    phase: str
    began: float
    ended: float


class Start(msgspec.Struct, frozen=True):
    """One cold start. Seconds from the command to the first token, which includes the interpreter's own start."""

    first_token: float
    phases: list[Phase]


def bench_startup(config: EngineConfig, flags: Sequence[str], num_iterations: int, api_key: str | None) -> Report:
    """`headrace serve` with these flags, which are those of `config`. Raises `StartupError` if it does not start."""
    starts = [start_once(flags, api_key) for _ in range(num_iterations)]
    seconds = [start.first_token for start in starts]
    phases = [summarize_phase(place, starts) for place in phases_of(starts)]
    lines = [
        f"{num_iterations} starts",
        "",
        f"{'seconds':<{WIDTH}}{'median':>10}{'min':>10}{'max':>10}",
        f"{'from the command to the first token':<{WIDTH}}" + "".join(map(cell, spread(seconds))),
        "",
        f"{'phase':<{WIDTH}}{'from':>10}{'to':>10}{'took':>10}",
        *(
            f"{phase['process'] + ': ' + phase['phase']:<{WIDTH}}"
            + "".join(map(cell, (phase["began"], phase["ended"], phase["took"])))
            for phase in phases
        ),
    ]
    median, least, most = spread(seconds)
    return Report(
        benchmark="startup",
        settings=changed_settings(config) | {"num_iterations": num_iterations},
        results={
            "first_token_s": seconds,
            "median_first_token_s": median,
            "min_first_token_s": least,
            "max_first_token_s": most,
            "phases": phases,
            "starts": [msgspec.to_builtins(start.phases) for start in starts],
        },
        lines=lines,
        kernels="numpy" if config.backend == "numpy" else kernels(),
    )


def start_once(flags: Sequence[str], api_key: str | None) -> Start:
    """One server, until it has answered one request."""
    port = free_port()
    with tempfile.TemporaryFile("w+") as stderr:  # a pipe that nobody reads while the request waits could fill up
        began = time.perf_counter()
        with serving(flags, port, stderr) as server:
            ask(server, port, api_key)
            first_token = time.perf_counter() - began
        stderr.seek(0)
        said = stderr.read()
    if server.returncode < 0 or not (phases := parse_phases(said)):
        raise StartupError(f"the server answered, but did not end as it should. It said:\n{said}")
    return Start(first_token, phases)


@contextmanager
def serving(flags: Sequence[str], port: int, stderr: IO[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A server on `port`. Raises `StartupError` with its own words if it ends before it is told to."""
    command = [sys.executable, "-m", "headrace", "serve", *flags, "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        yield server
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(STOP_S)
    except _EndedError:
        server.wait()
        stderr.seek(0)
        raise StartupError(f"the server does not start:\n{stderr.read().rstrip()}") from None
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def ask(server: subprocess.Popen[bytes], port: int, api_key: str | None) -> None:
    """Returns with the first token."""
    headers = {"Content-Type": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    request = Request(f"http://127.0.0.1:{port}/v1/completions", BODY, headers)
    while True:
        try:
            with urlopen(request, timeout=PATIENCE_S) as reply:
                reply.read()
                return
        except HTTPError as error:
            said = f"the server answers with status {error.code}: {error.read().decode()}"
            if error.code < 500:
                raise StartupError(said) from None
            try:
                server.wait(STOP_S)  # it is about to end, and its own words are better
            except subprocess.TimeoutExpired:
                raise StartupError(said) from None
            raise _EndedError from None
        except OSError:
            if server.poll() is not None:
                raise _EndedError from None
            time.sleep(LOOK_S)


class _EndedError(Exception):
    """The server has ended by itself."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


# ---- phases ---------------------------------------------------------------------------------------------------------


def parse_phases(said: str) -> list[Phase]:
    """The launcher's table, from what it printed."""
    rows = filter(None, map(_ROW.fullmatch, said.splitlines()))
    return [Phase(row["process"], row["phase"], float(row["began"]), float(row["ended"])) for row in rows]


def phases_of(starts: Sequence[Start]) -> list[tuple[str, str]]:
    """Process and name of every phase, in the order of the first start that has it."""
    return list(dict.fromkeys((phase.process, phase.phase) for start in starts for phase in start.phases))


def summarize_phase(place: tuple[str, str], starts: Sequence[Start]) -> dict[str, Any]:
    """Medians over the starts that have this phase."""
    phases = [phase for start in starts for phase in start.phases if (phase.process, phase.phase) == place]
    return {
        "process": place[0],
        "phase": place[1],
        "began": statistics.median(phase.began for phase in phases),
        "ended": statistics.median(phase.ended for phase in phases),
        "took": statistics.median(phase.ended - phase.began for phase in phases),
    }


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)
