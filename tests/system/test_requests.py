"""Requests to a real server of the tiny model: what clients do to each other, and what is left afterwards."""

from __future__ import annotations

import json
import re
import socket
import threading
from pathlib import Path

import pytest

from tests.system.server import Server, wait_until

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


def test_streamed_is_not_streamed(server, right_text):
    assert streamed_text(server, GREEDY) == right_text


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


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "waiting"])
def test_h01_a_client_that_goes_away_is_forgotten(server, stream):
    body = json.dumps(GREEDY | {"max_tokens": 240, "stream": stream}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(raw_request(body))
        if stream:
            sock.recv(100)
        else:
            wait_until(lambda: server.metric("headrace:num_requests_running") == 1)
    before = server.metric("headrace:generation_tokens_total")
    wait_until(lambda: server.metric("headrace:num_requests_running") == 0)
    assert server.metric("headrace:generation_tokens_total") - before < 240


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        pytest.param({"prompt": [-1]}, 400, "prompt", id="A05"),
        pytest.param({"prompt": [49152]}, 400, "prompt", id="A06"),
        pytest.param({"prompt": [2**40]}, 400, "prompt", id="A06-int64"),
        pytest.param({"prompt": ""}, 400, "prompt", id="A07"),
        pytest.param({"prompt": [[]]}, 400, "prompt", id="A07-nested"),
        pytest.param({"top_p": 0}, 400, "top_p", id="A10"),
        pytest.param({"seed": 2**63}, 400, "seed", id="A12"),
        pytest.param({"n": 10**9}, 400, "n", id="A13"),
        pytest.param({"max_tokens": 0}, 400, "max_tokens", id="A16"),
        pytest.param({"max_tokens": -1}, 400, "max_tokens", id="A17"),
        pytest.param({"prompt": "word " * 600}, 400, "prompt", id="A24"),
        pytest.param({"prompt": "word " * 600, "stream": True}, 400, "prompt", id="A23"),
        pytest.param({"stop": [""]}, 400, "stop", id="A26"),
        pytest.param({"stop_token_ids": [49157]}, 400, "stop_token_ids", id="A04"),
        pytest.param({"logit_bias": {"49162": 5}}, 400, "logit_bias", id="A01"),
        pytest.param({"logit_bias": {"AI": -100}}, 400, "logit_bias", id="A02"),
        pytest.param({"logprobs": 21}, 400, "logprobs", id="A29"),
        pytest.param({"model": "another"}, 404, "model", id="model"),
    ],
)
def test_refusals(server, change, status, param):
    got, answer = server.post("/v1/completions", GREEDY | change)
    assert (got, answer["error"]["param"]) == (status, param)
    assert len(json.dumps(answer)) < 1000


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a09_numbers_that_are_none(server, word):
    body = json.dumps(GREEDY).replace('"temperature": 0', f'"temperature": {word}').encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(raw_request(body))
        reply = b"".join(iter(lambda: sock.recv(65536), b""))
    assert reply.startswith(b"HTTP/1.1 400")
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


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


def resident_kb(server: Server) -> int:
    status = Path(f"/proc/{server.processes()['headrace-api-0']}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])


def test_a28_a_header_without_end_is_refused_and_not_kept(server):
    before = resident_kb(server)
    start = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: "
    status, answer = talk(server, start, *[b"x" * 2**20] * 50)
    assert (status, answer["error"]["code"]) == (431, "headers_too_large")
    assert resident_kb(server) - before < 10_000


def test_a28_headers_without_end_are_refused(server):
    status, answer = talk(server, b"GET /health HTTP/1.1\r\n", *[b"a: b\r\n" * 2**14] * 64)
    assert (status, answer["error"]["code"]) == (431, "headers_too_large")


def test_headers_of_a_usual_size_and_a_large_body_are_no_concern(server):
    body = json.dumps(GREEDY | {"user": "x" * 2_000_000}).encode()
    request = raw_request(body).replace(b"Host: x", b"Host: x\r\nCookie: " + b"c" * 16_000)
    status, answer = talk(server, *(request[start : start + 50_000] for start in range(0, len(request), 50_000)))
    assert (status, answer["usage"]["completion_tokens"]) == (200, 24)


def test_a22_bytes_that_are_no_http_get_an_error_of_our_shape(server):
    status, answer = talk(server, b"\x16\x03\x01 this is TLS\r\n\r\n")
    assert status == 400
    assert answer["error"].keys() == {"message", "type", "param", "code"}
