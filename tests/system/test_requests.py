"""Requests to a real server of the tiny model: what clients do to each other, and what is left afterwards."""

from __future__ import annotations

import json
import threading

import pytest

from tests.system.server import Server, talk, wait_until

pytestmark = pytest.mark.system

GREEDY = {"model": "tiny", "prompt": "The quick brown fox", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tiny_model, demo_tokenizer):
    server = Server(
        str(tiny_model), "--load-format", "dummy", "--tokenizer", demo_tokenizer, "--max-model-len", "256",
        "--max-num-seqs", "16",
    )  # fmt: skip
    try:
        yield server.wait_ready()
    finally:
        server.close()


@pytest.fixture(scope="module")
def right_text(server):
    status, answer = server.post("/v1/completions", GREEDY)
    assert status == 200
    return answer["choices"][0]["text"]


@pytest.fixture(autouse=True)
def _nothing_is_left(server, right_text):
    """After every test: the server answers as before, and no request, block or process is left over or gone."""
    processes = server.processes()
    yield
    status, answer = server.post("/v1/completions", GREEDY)
    assert (status, answer["choices"][0]["text"]) == (200, right_text)
    for name in ("headrace:num_requests_running", "headrace:num_requests_waiting", "headrace:kv_cache_usage_perc"):
        wait_until(lambda name=name: server.metric(name) == 0)
    assert server.processes() == processes


def streamed_text(server: Server, body: dict) -> str:
    *events, done = server.stream("/v1/completions", body | {"stream": True})
    assert done == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def raw_request(body: bytes) -> bytes:
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_g06_alone_is_in_a_crowd(server, right_text):
    texts: list[str] = []
    crowd = [
        threading.Thread(
            target=lambda i=i: server.post("/v1/completions", GREEDY | {"prompt": f"{i} bottles", "max_tokens": 5 + i})
        )
        for i in range(30)
    ] + [threading.Thread(target=lambda: texts.append(streamed_text(server, GREEDY))) for _ in range(3)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert texts == [right_text] * 3


def test_g07_seeds(server):
    def ask(seed: int) -> str:
        return server.post("/v1/completions", GREEDY | {"temperature": 1.0, "seed": seed})[1]["choices"][0]["text"]

    assert ask(7) == ask(7)
    assert ask(7) != ask(8)


def test_n_choices_are_requests_with_their_own_seeds(server):
    body = GREEDY | {"temperature": 1.0, "seed": 7}
    choices = server.post("/v1/completions", body | {"n": 3})[1]["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["text"] for choice in choices}) == 3
    assert server.post("/v1/completions", body)[1]["choices"][0]["text"] == choices[0]["text"]


def test_a28_headers_without_end_are_refused(server):
    status, answer = talk(server, b"GET /health HTTP/1.1\r\n", *[b"a: b\r\n" * 2**14] * 64)
    assert (status, answer["error"]["code"]) == (431, "headers_too_large")


def test_headers_of_a_usual_size_and_a_large_body_are_no_concern(server):
    body = json.dumps(GREEDY | {"user": "x" * 2_000_000}).encode()
    request = raw_request(body).replace(b"Host: x", b"Host: x\r\nCookie: " + b"c" * 16_000)
    status, answer = talk(server, *(request[start : start + 50_000] for start in range(0, len(request), 50_000)))
    assert (status, answer["usage"]["completion_tokens"]) == (200, 24)
