"""Processes killed, stopped and terminated at each phase of their life."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.launch import open_listening_socket
from tests.system.server import Server, is_alive, wait_until

pytestmark = pytest.mark.system

TITLES = {"headrace-launcher", "headrace-api-0", "headrace-core-0"}
COMPLETION = {"model": "tiny", "prompt": "Hello", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
LONG = COMPLETION | {"max_tokens": 200, "stream": True}


class Stream(threading.Thread):
    """A streamed request in the background: its chunks, and how it ended."""

    def __init__(self, server: Server, body: dict = LONG) -> None:
        super().__init__(daemon=True)
        self.chunks: list[str] = []
        self.error: Exception | None = None
        self._server, self._body = server, body
        self.start()
        wait_until(lambda: self.chunks or self.error)

    def run(self) -> None:
        try:
            for chunk in self._server.stream("/v1/completions", self._body):
                self.chunks.append(chunk)
        except Exception as error:
            self.error = error


def test_titles_and_one_plan_at_start(start_server):
    server = start_server().wait_ready()
    assert set(server.processes()) == TITLES
    text = server.stderr
    for word in ("load model", "allocate KV cache", "tokenizer", "KV"):
        assert word in text
    assert server.get("/ready")[0] == server.get("/health")[0] == server.get("/live")[0] == 200
    assert server.post("/v1/completions", COMPLETION)[0] == 200


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


def test_shutdown_timeout_cuts_a_drain_short(start_server):
    """What runs longer ends with an error that says so, and the engine does not go on with it."""
    server = start_server("--shutdown-timeout", "0", "--max-model-len", "8000").wait_ready()
    streams = [Stream(server, LONG | {"max_tokens": 7000}) for _ in range(3)]
    answers: list[tuple[int, dict]] = []
    body = COMPLETION | {"max_tokens": 7000}
    waiting = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", body)))
    waiting.start()
    wait_until(lambda: server.metric("headrace:num_requests_running") == 4)
    server.signal(signal.SIGTERM)
    assert server.wait_end() == 0
    for stream in streams:
        stream.join(10)
        assert '"service_unavailable"' in stream.chunks[-1]
        assert len(stream.chunks) < 7000
    waiting.join(10)
    ((status, answer),) = answers
    assert (status, answer["error"]["code"]) == (503, "service_unavailable")
    assert "Traceback" not in server.stderr


def test_a_signal_to_all_processes_is_a_drain(start_server):
    """Service managers and terminals signal the whole group."""
    server = start_server().wait_ready()
    stream = Stream(server)
    for title in TITLES:
        server.signal(signal.SIGTERM, title)
    stream.join(60)
    assert stream.chunks[-1] == "[DONE]"
    assert server.wait_end() == 0


def test_a_closed_stderr_is_no_reason_to_drop_what_runs(start_server):
    server = start_server().wait_ready()
    stream = Stream(server)
    server.close_stderr()
    server.signal(signal.SIGTERM)
    stream.join(60)
    assert stream.chunks[-1] == "[DONE]"
    assert server.process.wait(60) == 0


def test_a_signal_while_starting_stops_at_once(start_server):
    server = start_server()
    wait_until(lambda: set(server.processes()) == TITLES)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_end() == 128 + signal.SIGTERM


def failing_start(start_server, *flags: str) -> str:
    server = start_server(*flags)
    assert server.wait_end() == 1
    return server.stderr


def test_h10_a_corrupt_weight_file_is_named(start_server, tiny_model, tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "config.json").write_text((tiny_model / "config.json").read_text())
    (folder / "model.safetensors").write_bytes(b"\xff" * 1000)
    server = Server(str(folder))
    try:
        assert server.wait_end() == 1
        assert "model.safetensors" in server.stderr
        assert "Traceback" not in server.stderr
    finally:
        server.close()


def test_a_kv_cache_too_small_is_refused_with_numbers(start_server):
    assert "--kv-cache-memory" in failing_start(start_server, "--kv-cache-memory", "1K")


def test_a_tokenizer_that_is_not_there_is_named(start_server):
    assert "no-such-tokenizer" in failing_start(start_server, "--tokenizer", "/no-such-tokenizer")


def test_a_taken_port_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="cannot listen"):
        open_listening_socket("127.0.0.1", taken.getsockname()[1])


def test_h14_restart_on_the_same_port(start_server):
    first = start_server().wait_ready()
    port = first.url.rpartition(":")[2]
    pids = first.processes().values()
    first.process.kill()
    wait_until(lambda: not any(map(is_alive, pids)))
    second = start_server(port=port)
    assert second.wait_ready()
    for _ in range(50):
        assert second.post("/v1/completions", COMPLETION | {"max_tokens": 1})[0] == 200


def test_idle_uses_no_cpu(start_server):
    server = start_server().wait_ready()
    server.post("/v1/completions", COMPLETION)
    pids = server.processes().values()

    def ticks() -> int:
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        return sum(int(f[11]) + int(f[12]) for f in fields)

    def is_quiet() -> bool:
        before = ticks()
        time.sleep(0.2)
        return ticks() - before <= 1

    wait_until(is_quiet)  # what the request has left to do is not the subject
    before = ticks()
    time.sleep(1.0)  # the subject of this test: what a second of nothing costs
    assert (ticks() - before) / os.sysconf("SC_CLK_TCK") < 0.1


def test_loopback_tcp_between_the_processes(start_server):
    server = start_server("--ipc-transport", "tcp").wait_ready()
    assert server.post("/v1/completions", COMPLETION)[0] == 200
