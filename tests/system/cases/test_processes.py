"""Processes killed and terminated at each phase of their life. Each case has servers of its own."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from tests.system.server import Server, is_alive, wait_until
from tests.system.streaming import COMPLETION, LONG, TITLES, Stream

pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def surroundings() -> None:
    """None: what these servers run ends with them."""


@pytest.fixture
def start_server(start_server: Callable[..., Server], mode: dict[str, str]) -> Callable[..., Server]:
    return partial(start_server, "--max-model-len", "8000", env=mode)


class Whole(threading.Thread):
    """A request that is not streamed, in the background, and its answer."""

    def __init__(self, server: Server, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self.reply: tuple[int, dict] | None = None
        self._server, self._max_tokens = server, max_tokens
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError):  # the server is gone: there is no answer
            self.reply = self._server.post("/v1/completions", COMPLETION | {"max_tokens": self._max_tokens})


@dataclass
class Clients:
    """Who waits for an answer: one stream and one whole answer, or beside them eight more streams."""

    streams: list[Stream]
    whole: Whole

    @property
    def threads(self) -> list[threading.Thread]:
        return [*self.streams, self.whole]

    def join(self) -> None:
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture(params=[1, 9], ids=["alone", "beside"])
def clients_of(request: pytest.FixtureRequest) -> Callable[..., Clients]:
    """With answers so long that none ends before the test does, or as long as it says."""

    def ask(server: Server, max_tokens: int = 7000) -> Clients:
        whole = Whole(server, max_tokens)
        streams = [Stream(server, LONG | {"max_tokens": max_tokens}) for _ in range(request.param)]
        wait_until(lambda: server.metric("headrace:num_requests_running") > 0)
        return Clients(streams, whole)

    return ask


def pids_while(phase: str, server: Server, clients_of: Callable[..., Clients]) -> list[int]:
    """Bring a server to a phase; the ids of its processes there."""
    if phase == "loading":
        wait_until(lambda: set(server.processes()) == TITLES or server.process.poll() is not None)
    else:
        server.wait_ready()
        if phase == "busy":
            clients_of(server)
    return list(server.processes().values())


@pytest.mark.parametrize("phase", ["loading", "idle", "busy"])
def test_h06_nothing_outlives_a_killed_launcher(start_server, clients_of, phase):
    server = start_server()
    pids = pids_while(phase, server, clients_of)
    server.process.kill()
    began = time.monotonic()
    wait_until(lambda: not any(map(is_alive, pids)))
    assert time.monotonic() - began < 5  # the promise, not a measurement: it takes milliseconds
    assert start_server().wait_ready().post("/v1/completions", COMPLETION)[0] == 200


@pytest.mark.parametrize("victim", ["headrace-core-0", "headrace-api-0"])
def test_h07_a_dead_process_ends_the_server_with_the_reason(start_server, clients_of, victim):
    server = start_server().wait_ready()
    clients = clients_of(server)
    pids = server.processes()
    server.signal(signal.SIGKILL, victim)
    assert server.wait_end() == 1
    assert f"{victim} was killed by SIGKILL" in server.stderr
    clients.join()
    for stream in clients.streams:
        if victim == "headrace-core-0":
            assert '"error"' in stream.chunks[-1]
        else:
            assert stream.error is not None or "[DONE]" not in stream.chunks
    if victim == "headrace-core-0":
        assert clients.whole.reply is not None
        status, answer = clients.whole.reply
        assert (status, answer["error"]["code"]) == (500, "engine_dead")
    else:
        assert clients.whole.reply is None
    assert not any(map(is_alive, pids.values()))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_h09_drain(start_server, clients_of, signum):
    server = start_server().wait_ready()
    clients = clients_of(server, max_tokens=1000)
    server.signal(signum)
    wait_until(lambda: server.get("/ready")[0] == 503)
    status, answer = server.post("/v1/completions", COMPLETION)
    assert (status, answer["error"]["code"]) == (503, "service_unavailable")
    clients.join()
    texts = set()
    for stream in clients.streams:
        *events, done = stream.chunks
        assert done == "[DONE]"
        choices = [json.loads(event)["choices"][0] for event in events]
        assert choices[-1]["finish_reason"] == "length"
        texts.add("".join(choice["text"] for choice in choices))
    assert clients.whole.reply is not None
    status, answer = clients.whole.reply
    assert (status, {answer["choices"][0]["text"]}) == (200, texts)
    assert server.wait_end() == 0


def test_h09_a_second_signal_stops_at_once(start_server, clients_of):
    server = start_server().wait_ready()
    clients_of(server)
    pids = server.processes()
    server.signal(signal.SIGTERM)
    server.wait_for_line("draining")
    server.signal(signal.SIGTERM)
    assert server.wait_end() == 128 + signal.SIGTERM
    assert not any(map(is_alive, pids.values()))
