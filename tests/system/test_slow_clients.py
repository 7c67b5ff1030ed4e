"""Clients that do not read, or do not finish what they say: what they cost, and whom they hold up."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from pathlib import Path

import pytest

from tests.system.server import Server, wait_until
from tests.system.tiny_server import GAUGES, GREEDY, Postcondition, start_tiny_server

pytestmark = pytest.mark.system

LONG = {"prompt": "The quick brown fox", "n": 1, "max_tokens": 240, "ignore_eos": True, "seed": 1, "stream": True}
KERNEL_BYTES = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])  # most that it keeps for a client
CHOICE_BYTES = 220_000  # with logprobs
LARGE = LONG | {"n": min(128, 1 + KERNEL_BYTES * 5 // 4 // CHOICE_BYTES), "logprobs": 20}
CLIENTS = [LONG] * 48 + [LARGE] * 2
MAX_GROWTH_KB = (
    10_000 + 2 * LARGE["n"] * 150
)  # a high-water mark and some text for each; 2 merged answers with logprobs


@pytest.fixture(scope="module")
def server(tiny_model):
    server = start_tiny_server(tiny_model, "--max-num-seqs", "64")
    try:
        yield server.wait_ready()
    finally:
        server.close()


@pytest.fixture(autouse=True)
def _nothing_is_left(server):
    postcondition = Postcondition(server)
    yield
    postcondition.check()


def connect(server: Server) -> socket.socket:
    """With room for little on the way."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
    return connection


def request_bytes(body: dict, path: str = "/v1/completions") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(2**16), b""))


def texts_of(reply: bytes) -> list[str]:
    """The text of each choice of a streamed answer. It must be whole."""
    payload = b"".join(_chunks(reply.partition(b"\r\n\r\n")[2]))
    *events, done = [line[6:] for line in payload.split(b"\n\n") if line]
    assert done == b"[DONE]"
    texts: dict[int, str] = {}
    reasons = []
    for event in events:
        for choice in json.loads(event)["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert reasons == ["length"] * len(texts)
    return [text for _, text in sorted(texts.items())]


def _chunks(data: bytes):
    while data:
        size, _, data = data.partition(b"\r\n")
        yield data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]


def resident_kb(server: Server) -> int:
    status = Path(f"/proc/{server.processes()['headrace-api-0']}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])


def test_clients_that_do_not_read_cost_little_hold_up_nobody_and_get_all_when_they_read(server):
    right = [answer_of(server, LONG), answer_of(server, LARGE)]
    before = resident_kb(server)
    ended = server.metric("headrace:request_success_total")
    with contextlib.ExitStack() as stack:
        sleepers = [stack.enter_context(connect(server)) for _ in CLIENTS]
        for connection, body in zip(sleepers, CLIENTS, strict=True):
            connection.sendall(request_bytes(body))
        healthy = [server.post("/v1/completions", GREEDY) for _ in range(20)]
        assert {status for status, _ in healthy} == {200}
        assert len({answer["choices"][0]["text"] for _, answer in healthy}) == 1
        # The engine waits for none of them, so all are computed though none is read.
        num_choices = 20 + sum(body["n"] for body in CLIENTS)
        wait_until(lambda: server.metric("headrace:request_success_total") - ended == num_choices, 240)
        assert resident_kb(server) - before < MAX_GROWTH_KB
        assert server.metric("headrace:kv_cache_usage_perc") == 0
        for connection, body in zip(sleepers, CLIENTS, strict=True):
            assert texts_of(read_all(connection)) == right[body is LARGE]


def answer_of(server: Server, body: dict) -> list[str]:
    with connect(server) as connection:
        connection.sendall(request_bytes(body))
        return texts_of(read_all(connection))


def test_a_client_that_never_reads_is_forgotten_when_it_goes_away(server):
    with connect(server) as connection:
        connection.sendall(request_bytes(LARGE))
        wait_until(lambda: server.metric("headrace:num_requests_running") > 0)
    for name in GAUGES:
        wait_until(lambda name=name: server.metric(name) == 0)


@pytest.fixture
def impatient(tiny_model):
    """A server that waits half a second for its clients."""
    server = start_tiny_server(tiny_model, "--client-timeout", "0.5")
    try:
        yield server.wait_ready()
    finally:
        server.close()


def test_a_client_that_takes_nothing_is_given_up(impatient):
    with connect(impatient) as connection:
        connection.sendall(request_bytes(LARGE))
        impatient.wait_for_line("has taken nothing of its answer for 0.5 s")
        assert not read_all(connection).endswith(b"0\r\n\r\n")  # what the kernel had, and not the end


def test_h09_a_client_that_takes_nothing_does_not_hold_up_a_shutdown(impatient):
    with connect(impatient) as connection:
        connection.sendall(request_bytes(LARGE))
        assert connection.recv(10)
        impatient.process.terminate()
        assert impatient.wait_end() == 0


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"", None, id="nothing"),
        pytest.param(b"POST /v1/compl", 408, id="half a line"),
        pytest.param(request_bytes(GREEDY)[:-40], 408, id="half a body"),
    ],
)
def test_a_request_without_end_is_given_up(impatient, sent, status):
    with connect(impatient) as connection:
        connection.sendall(sent)
        reply = read_all(connection)
    if status is None:
        assert reply == b""
    else:
        assert reply.startswith(f"HTTP/1.1 {status} ".encode())
        assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"


BROKEN_BODY = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n"


@pytest.mark.parametrize(
    "more",
    [b"\x00 no HTTP\r\n\r\n", b"NO HTTP\x00", b"GET / HTTP/1.1\r\nX: " + b"x" * 80_000, BROKEN_BODY],
    ids=["no method", "no line", "large header", "broken body"],
)
def test_nothing_is_said_into_an_answer(server, more):
    """A fault in what a client sends behind a request ends the connection, and does not break into the answer, which
    is too large to be over by then."""
    with connect(server) as connection:
        connection.sendall(request_bytes(LARGE).replace(b"Connection: close\r\n", b""))
        reply = connection.recv(2**16)
        with contextlib.suppress(ConnectionError):
            connection.sendall(more)
            while piece := connection.recv(2**16):
                reply += piece
    assert reply.count(b"HTTP/1.1") == 1
    assert b"malformed" not in reply


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_h01_a_client_that_has_asked_for_more_and_goes_away_is_forgotten(server, stream):
    before = server.metric("headrace:generation_tokens_total")
    with connect(server) as connection:
        connection.sendall(2 * request_bytes(LONG | {"n": 32, "stream": stream}).replace(b"Connection: close\r\n", b""))
        wait_until(lambda: server.metric("headrace:num_requests_running") == 32)
    for name in GAUGES:
        wait_until(lambda name=name: server.metric(name) == 0)
    assert server.metric("headrace:generation_tokens_total") - before < 32 * LONG["max_tokens"]
