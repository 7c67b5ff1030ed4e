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
from tests.system.server import is_alive, wait_until
from tests.system.streaming import COMPLETION, LONG, TITLES, Stream

pytestmark = pytest.mark.system


def test_titles_and_one_plan_at_start(start_server):
    server = start_server().wait_ready()
    assert set(server.processes()) == TITLES
    text = server.stderr
    for word in ("load model", "allocate KV cache", "tokenizer", "KV"):
        assert word in text
    assert server.get("/ready")[0] == server.get("/health")[0] == server.get("/live")[0] == 200
    assert server.post("/v1/completions", COMPLETION)[0] == 200


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
