"""Processes killed and terminated at each phase of their life. Each case has servers of its own."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from tests.system.server import Server, is_alive, wait_until
from tests.system.streaming import COMPLETION, TITLES, Stream

pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def surroundings() -> None:
    """None: what these servers run ends with them."""


@pytest.fixture
def start_server(start_server: Callable[..., Server], mode: dict[str, str]) -> Callable[..., Server]:
    return partial(start_server, env=mode)


def pids_while(phase: str, server: Server) -> list[int]:
    """Bring a server to a phase; the ids of its processes there."""
    if phase == "loading":
        wait_until(lambda: set(server.processes()) == TITLES or server.process.poll() is not None)
    else:
        server.wait_ready()
        if phase == "busy":
            Stream(server)
    return list(server.processes().values())


@pytest.mark.parametrize("phase", ["loading", "idle", "busy"])
def test_h06_nothing_outlives_a_killed_launcher(start_server, phase):
    server = start_server()
    pids = pids_while(phase, server)
    server.process.kill()
    began = time.monotonic()
    wait_until(lambda: not any(map(is_alive, pids)))
    assert time.monotonic() - began < 5  # the promise, not a measurement: it takes milliseconds
    assert start_server().wait_ready().post("/v1/completions", COMPLETION)[0] == 200


@pytest.mark.parametrize("victim", ["headrace-core-0", "headrace-api-0"])
def test_h07_a_dead_process_ends_the_server_with_the_reason(start_server, victim):
    server = start_server().wait_ready()
    stream = Stream(server)
    pids = server.processes()
    server.signal(signal.SIGKILL, victim)
    assert server.wait_end() == 1
    assert f"{victim} was killed by SIGKILL" in server.stderr
    stream.join(10)
    assert not stream.is_alive()
    if victim == "headrace-core-0":
        assert '"error"' in stream.chunks[-1]
    else:
        assert stream.error is not None or "[DONE]" not in stream.chunks
    assert not any(map(is_alive, pids.values()))


def test_h07_a_waiting_request_hears_of_the_engines_death(start_server):
    server = start_server().wait_ready()
    answers: list[tuple[int, dict]] = []
    body = COMPLETION | {"max_tokens": 200}
    waiting = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", body)))
    waiting.start()
    wait_until(lambda: server.metric("headrace:num_requests_running") == 1)
    server.signal(signal.SIGKILL, "headrace-core-0")
    waiting.join(10)
    ((status, answer),) = answers
    assert status == 500
    assert answer["error"]["code"] == "engine_dead"
    assert server.wait_end() == 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_h09_drain(start_server, signum):
    server = start_server().wait_ready()
    stream = Stream(server)
    server.signal(signum)
    wait_until(lambda: server.get("/ready")[0] == 503)
    status, answer = server.post("/v1/completions", COMPLETION)
    assert (status, answer["error"]["code"]) == (503, "service_unavailable")
    stream.join(60)
    assert stream.chunks[-1] == "[DONE]"
    assert '"finish_reason":"length"' in "".join(stream.chunks).replace(" ", "")
    assert server.wait_end() == 0


def test_h09_a_second_signal_stops_at_once(start_server):
    server = start_server().wait_ready()
    Stream(server)
    pids = server.processes()
    server.signal(signal.SIGTERM)
    server.wait_for_line("draining")
    server.signal(signal.SIGTERM)
    assert server.wait_end() == 128 + signal.SIGTERM
    assert not any(map(is_alive, pids.values()))


def test_h10_a_corrupt_weight_file_is_named(mode, tiny_model, tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "config.json").write_text((tiny_model / "config.json").read_text())
    (folder / "model.safetensors").write_bytes(b"\xff" * 1000)
    server = Server(str(folder), env=mode)
    try:
        assert server.wait_end() == 1
        assert "model.safetensors" in server.stderr
        assert "Traceback" not in server.stderr
    finally:
        server.close()
