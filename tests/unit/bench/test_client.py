"""The client against a server whose every byte and delay is known."""

from __future__ import annotations

import asyncio
import json

import pytest

from headrace.bench.client import Client, EventSplitter, get_json
from headrace.bench.http_client import Address, ExchangeError, HTTPClient, parse_url
from headrace.bench.record import Record
from headrace.bench.workload import Ask
from headrace.errors import ConfigError
from tests.unit.bench.fake_server import DONE, END, OK, FakeServer, chunk, delta, error, event, text, usage

ASK = Ask([1, 2, 3], 3)
WHOLE = [
    (2.0, OK),
    (5.0, chunk(text("one"))),
    (6.0, chunk(text("two"))),
    (8.0, chunk(text("three", "length"))),
    (9.0, chunk(usage(), DONE) + END),
]


def ask(
    server: FakeServer, *, times: int = 1, backend: str = "openai", asked: Ask = ASK, **more: object
) -> list[Record]:
    async def work(http):
        client = Client(http, backend, "m", more, 60.0, server.clock)
        return [await client.measure(client.encode(asked), asked.num_output_tokens, 1.0) for _ in range(times)]

    return server.run(work)


def test_times_are_those_at_which_bytes_came():
    (record,) = ask(FakeServer(WHOLE))
    assert record.error is None
    assert record.text_times == [5.0, 6.0, 8.0]
    assert record.ttft == 4.0  # from the arrival, which was at 1.0
    assert record.itls == [1.0, 2.0]
    assert record.e2el == 7.0  # to the finish reason, not to the usage or the end of the connection
    assert record.tpot == 1.5
    assert (record.num_prompt_tokens, record.num_output_tokens, record.num_cached_tokens) == (7, 3, 4)
    assert record.finish_reason == "length"


def test_events_that_come_together_are_several_events_at_one_time():
    (record,) = ask(FakeServer([(2.0, OK), (5.0, chunk(text("a"), text("b"), text("c", "stop"), usage(), DONE) + END)]))
    assert record.text_times == [5.0, 5.0, 5.0]
    assert record.itls == [0.0, 0.0]


def test_an_event_in_two_pieces_came_with_the_second():
    whole = chunk(text("one", "stop"), usage(), DONE) + END
    (record,) = ask(FakeServer([(2.0, OK), (3.0, whole[:30]), (4.0, whole[30:])]))
    assert record.text_times == [4.0]


def test_tokens_are_those_of_the_usage_and_not_events():
    script = [
        (2.0, OK),
        (3.0, chunk(text("a lot"))),
        (5.0, chunk(text("of it", "stop"))),
        (6.0, chunk(usage(completion_tokens=21), DONE) + END),
    ]
    (record,) = ask(FakeServer(script))
    assert record.num_output_tokens == 21
    assert record.tpot == 0.1


def test_tokens_without_text_have_come_with_the_end():
    (record,) = ask(
        FakeServer([(2.0, OK), (3.0, chunk(text(""))), (5.0, chunk(text("", "length"), usage(), DONE) + END)])
    )
    assert record.error is None
    assert record.ttft == 4.0


def test_in_a_chat_the_role_is_no_token_and_a_thought_is_one():
    script = [
        (2.0, OK),
        (3.0, chunk(delta(role="assistant", content=""))),
        (4.0, chunk(delta(reasoning_content="hm"))),
        (5.0, chunk(delta(content="yes"))),
        (6.0, chunk(delta("stop"), usage(), DONE) + END),
    ]
    chat = Ask([{"role": "user", "content": "Well?"}], 3)
    server = FakeServer(script)
    (record,) = ask(server, backend="openai-chat", asked=chat, temperature=0)
    assert record.text_times == [4.0, 5.0]
    assert record.e2el == 5.0
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert json.loads(body) == {
        "model": "m",
        "messages": chat.prompt,
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ([(2.0, error(503, {"error": {"message": "too much"}}))], "status 503: too much"),
        ([(2.0, error(200, {"choices": []}))], "not a stream"),
        ([(2.0, OK), (3.0, chunk(text("one")) + END)], "ended before the answer"),
        ([(2.0, OK), (3.0, chunk(text("one")))], "ended before the answer"),
        ([(2.0, OK), (3.0, chunk(text("one", "stop"), usage()) + END)], "ended before the answer"),  # no [DONE]
        ([(2.0, OK), (3.0, chunk(text("one"), usage(), DONE) + END)], "ended before the answer"),  # no finish reason
        ([(2.0, OK), (3.0, chunk(text("one", "stop"), DONE) + END)], "no usage"),
        ([(2.0, OK), (3.0, chunk(usage(completion_tokens=0), text("", "stop"), DONE) + END)], "no tokens"),
        ([(2.0, OK), (3.0, chunk(text("one"), event({"error": {"message": "broke"}})))], "broke off: broke"),
        ([(2.0, OK), (3.0, chunk(event("{")))], "no completion"),
        ([(2.0, b"SMTP ready\r\n")], "no HTTP"),
        ([], "closed the connection without an answer"),
    ],
)
def test_everything_but_a_whole_answer_is_a_failure(script, words):
    (record,) = ask(FakeServer(script, hangs_up=(0,)))
    assert not record.is_completed
    assert words in record.error


def test_an_answer_that_does_not_come_is_a_failure():
    async def work(http):
        client = Client(http, "openai", "m", {}, 0.01, server.clock)
        return await client.measure(client.encode(ASK), 3, 1.0)

    server = FakeServer([(2.0, OK)])
    assert "no whole answer within 0.01 s" in server.run(work).error


def test_nobody_there_is_a_failure():
    async def work():
        client = Client(HTTPClient(parse_url("http://127.0.0.1:1")), "openai", "m", {}, 60.0)
        return await client.measure(client.encode(ASK), 3, 1.0)

    assert "no connection" in asyncio.run(work()).error


def test_a_connection_is_kept_for_the_next_request():
    server = FakeServer(WHOLE, WHOLE)
    assert [record.error for record in ask(server, times=2)] == [None, None]
    assert server.num_connections == 1


def test_a_kept_connection_that_the_server_has_closed_is_no_failure():
    server = FakeServer(WHOLE, [], WHOLE, hangs_up=(1,))
    assert [record.error for record in ask(server, times=2)] == [None, None]
    assert server.num_connections == 2


def test_a_key_is_sent_as_a_bearer_token():
    async def work(http):
        return await get_json(http, "/v1/models")

    server = FakeServer([(2.0, error(200, {"data": []}))])
    assert server.run(work, api_key="secret") == (200, {"data": []})
    assert b"\r\nAuthorization: Bearer secret\r\n" in server.requests[0]


def test_a_document_that_is_no_json():
    async def work(http):
        return await get_json(http, "/v1/models")

    page = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>"
    with pytest.raises(ExchangeError, match="no JSON"):
        FakeServer([(2.0, page)]).run(work)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_events_come_out_however_the_bytes_are_cut(newline):
    stream = b": a comment\nevent: x\ndata: one\n\ndata:two\ndata: more\n\n\ndata: [DONE]\n\n".replace(b"\n", newline)
    for first in range(len(stream)):
        for second in range(first, len(stream)):
            splitter = EventSplitter()
            found = [
                *splitter.feed(stream[:first]),
                *splitter.feed(stream[first:second]),
                *splitter.feed(stream[second:]),
            ]
            assert found == [b"one", b"two\nmore", b"[DONE]"]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000", Address("127.0.0.1", 8000, "", uses_tls=False)),
        ("http://host/", Address("host", 80, "", uses_tls=False)),
        ("https://host/api/v1", Address("host", 443, "/api", uses_tls=True)),
        ("http://[::1]:8000/v1/", Address("::1", 8000, "", uses_tls=False)),
    ],
)
def test_addresses(url, address):
    assert parse_url(url) == address


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://host:99999", "http://host/?a=b"])
def test_what_is_no_address(url):
    with pytest.raises(ConfigError, match="--base-url"):
        parse_url(url)


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(ConfigError, match="HEADRACE_API_KEY") as raised:
        parse_url("http://me:hush@host")
    assert "hush" not in raised.value.message


def test_addresses_in_headers():
    assert Address("::1", 8000, "", uses_tls=False).host_header == "[::1]:8000"
    assert Address("host", 443, "", uses_tls=True).host_header == "host"
