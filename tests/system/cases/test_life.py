"""Requests that come, go and come back: caches, lost clients, equal names, and what the metrics make of it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path

import pytest

from tests.metrics_snapshot import AS_EVER, described
from tests.system.cases.client import CHAT, COMPLETIONS, PROMPT, ROUTES, ask, post, send
from tests.system.cases.conftest import GAUGES
from tests.system.cases.faults.sitecustomize import SPEAKS_LATE
from tests.system.endurance import leaks, run_large_prompts
from tests.system.server import Server, wait_until

pytestmark = pytest.mark.system

LONG = {"prompt": "The quick brown fox", "max_tokens": 240, "temperature": 0, "ignore_eos": True}


def test_g01_a_hit_gives_the_same_as_a_miss(server: Server, stream: bool) -> None:
    """Each way of asking has a salt of its own: the other one's blocks are no hits."""
    prompt = list(range(100, 180))  # five blocks
    asked = {"prompt": prompt, "cache_salt": f"g01 {stream}", "logprobs": 0, "return_tokens_as_token_ids": True}
    answers = []
    for place in range(4):
        answers.append(ask(server, COMPLETIONS, stream, **asked))
        ask(server, COMPLETIONS, stream, prompt=[place] * 40)
    ids = [[token for piece in answer.logprobs[0] for token in piece["tokens"]] for answer in answers]
    assert ids == [ids[0]] * 4
    assert len(ids[0]) == 8
    cached = [answer.usage["prompt_tokens_details"]["cached_tokens"] for answer in answers[1:]]
    assert cached == [64] * 3  # all blocks but the last, whose last token is computed anew


class RawClient:
    """A connection with one request on it, which can be cut off."""

    def __init__(self, server: Server, fields: dict[str, object]) -> None:
        body = json.dumps(fields).encode()
        self._socket = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60)
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self._socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def hear(self) -> bytes:
        return self._socket.recv(4096)

    def cut(self) -> None:
        self._socket.close()


@pytest.mark.parametrize("surroundings", ["alone"], indirect=True)
@pytest.mark.parametrize("seed", [1, SPEAKS_LATE], ids=["h01", "h03"])
def test_h01_h03_a_client_that_goes_away_is_forgotten(server: Server, stream: bool, seed: int) -> None:
    """H03: the engine core sends one more token after it has heard of the abort."""
    before = server.metric("headrace:generation_tokens_total")
    client = RawClient(server, LONG | {"stream": stream, "seed": seed})
    if stream:
        client.hear()
    else:
        wait_until(lambda: server.metric("headrace:num_requests_running") == 1)
    client.cut()
    for name in GAUGES:
        wait_until(lambda name=name: server.metric(name) == 0)
    assert server.metric("headrace:generation_tokens_total") - before < 240


@pytest.mark.parametrize("seed", [1, SPEAKS_LATE], ids=["h01", "h03"])
def test_h01_h03_many_clients_who_go_away(server: Server, stream: bool, seed: int) -> None:
    clients = [RawClient(server, LONG | {"stream": stream, "seed": seed}) for _ in range(12)]
    if stream:
        for client in clients:
            client.hear()
    for client in clients:
        client.cut()


@pytest.mark.parametrize("path", ROUTES)
def test_h04_two_requests_of_one_name(server: Server, stream: bool, path: str) -> None:
    bodies = [
        {**PROMPT[path], "seed": seed, "temperature": 1, "max_tokens": 60, "ignore_eos": True, "stream": stream}
        for seed in range(4)
    ]
    named = {"X-Request-Id": "the-same"}

    def text(body: dict[str, object], headers: dict[str, str]) -> str:
        reply = post(server, path, body, headers)
        messages = reply.events() if stream else [reply.json()]
        choices = [choice for message in messages for choice in message["choices"]]
        return "".join(
            c.get("text") or (c.get("message") or c.get("delta") or {}).get("content") or "" for c in choices
        )

    expected = [text(body, {}) for body in bodies]
    found: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda place=place: found.update({place: text(bodies[place], named)}))
        for place in range(len(bodies))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[place] for place in range(len(bodies))] == expected
    assert len(set(expected)) == len(bodies)


def test_j12_no_error_leaves_a_trace_in_the_gauges(server: Server) -> None:
    """Errors of every kind at once, with a watcher who reads the gauges all the while."""
    is_over = threading.Event()
    seen: list[float] = []

    def watch() -> None:
        while not is_over.is_set():
            seen.extend(server.metric(name) for name in GAUGES)

    def spoil(place: int) -> None:
        for _ in range(5):
            post(server, COMPLETIONS, {**PROMPT[COMPLETIONS], "n": 0})
            post(server, CHAT, {"messages": []})
            post(server, CHAT, b"{")
            post(server, COMPLETIONS, {"prompt": [5] * 300})
            send(server, "GET", "/nothing")
            ask(server, COMPLETIONS, True, seed=place, temperature=1, stop=["e"])
            client = RawClient(server, LONG | {"stream": True, "seed": place})
            client.hear()
            client.cut()

    watcher = threading.Thread(target=watch)
    spoilers = [threading.Thread(target=spoil, args=(place,)) for place in range(4)]
    watcher.start()
    for thread in spoilers:
        thread.start()
    for thread in spoilers:
        thread.join()
    is_over.set()
    watcher.join()
    assert seen
    assert min(seen) >= 0


def test_j13_metrics_are_what_dashboards_know(server: Server) -> None:
    assert described(server.get("/metrics")[1], "tiny") == AS_EVER


def test_h11_large_prompts_hold_up_nobody(server: Server) -> None:
    """Each is refused or served, and /health answers every time: how quickly, `make endurance` judges."""
    statuses, latencies = asyncio.run(run_large_prompts(server, seconds=0))
    assert {status.rpartition(" ")[2] for status in statuses} <= {"200", "400"}
    assert latencies


def test_h13_many_requests_leave_nothing_behind(server: Server, stream: bool) -> None:
    assert not leaks(server, stream=stream)


def test_h10_a_corrupt_weight_file_is_named(mode: dict[str, str], tiny_model: Path, tmp_path: Path) -> None:
    """A server that cannot start; the one beside it is not disturbed."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "config.json").write_text((tiny_model / "config.json").read_text())
    (folder / "model.safetensors").write_bytes(b"\xff" * 1000)
    broken = Server(str(folder), env=mode)
    try:
        assert broken.wait_end() == 1
        assert "model.safetensors" in broken.stderr
        assert "Traceback" not in broken.stderr
    finally:
        broken.close()
