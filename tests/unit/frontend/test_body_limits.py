"""Bodies that are broken, or large in every way that a body can be: each route that reads one refuses them alike."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.requests import ClientDisconnect, Request

from headrace.config.limits import Limits
from headrace.errors import OverloadedError
from headrace.frontend.http.connection import BodyReader
from headrace.frontend.http.openai.request_body import MAX_NESTING, MAX_PARTS
from tests.unit.frontend.serving import Server

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [40]},
}
GENERATES = ["/v1/chat/completions", "/v1/completions"]
on_every_route = pytest.mark.parametrize("path", BODIES)


def beside(path: str, field: str) -> bytes:
    """The route's own body with one more field, as it is written."""
    return json.dumps(BODIES[path]).encode()[:-1] + b", " + field.encode() + b"}"


async def send(server: Server, path: str, body: bytes, content_type: str = "application/json"):
    return await server.client.post(path, content=body, headers={"content-type": content_type})


def assert_refused(response, words: str = "") -> None:
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error.keys(), error["type"]) == ({"message", "type", "param", "code"}, "invalid_request_error")
    assert words in error["message"]
    assert len(response.content) < 1000


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    return opening * depth + "0" + closing * depth


@on_every_route
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xef\xbb\xbf{}", id="byte order mark"),
        pytest.param(b'{"user": "\xff"}', id="no UTF-8"),
        pytest.param(b'{"user": "\xed\xa0\x80"}', id="a surrogate in UTF-8"),
        pytest.param(b'{"user": "\\ud800"}', id="a lone surrogate"),
        pytest.param(b'{"user": "\\udc00\\ud800"}', id="surrogates the wrong way round"),
        pytest.param(b'{"\\ud800": 1}', id="a lone surrogate as a key"),
        pytest.param(b'{"user": "\x00"}', id="a raw control character"),
        pytest.param(b'{"user": 1e999}', id="a number that no float holds"),
        pytest.param(b'{"user": ' + b"9" * 5000 + b"}", id="an integer of 5000 digits"),
        pytest.param(b'{"user": 0x10}', id="hexadecimal"),
        pytest.param(b"{'user': 1}", id="single quotes"),
        pytest.param(b'{"user": 1,}', id="a comma too many"),
        pytest.param("{}".encode("utf-16"), id="UTF-16"),
        pytest.param(b"{}{}", id="two objects"),
    ],
)
def test_f04_what_is_no_json_is_refused(run, path, body):
    async def scenario(server: Server) -> None:
        assert_refused(await send(server, path, body), "The body is not valid JSON.")

    run(scenario)


@on_every_route
@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "text/json", ""])
def test_another_content_type_is_refused(run, path, content_type):
    async def scenario(server: Server) -> None:
        body = json.dumps(BODIES[path]).encode()
        assert_refused(await send(server, path, body, content_type), "Content-Type: application/json")

    run(scenario)


@on_every_route
def test_another_method_is_refused(run, path):
    async def scenario(server: Server) -> None:
        for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"):
            response = await server.client.request(method, path)
            assert (response.status_code, response.headers["allow"]) == (405, "POST")
            if method != "HEAD":
                assert response.json()["error"]["code"] == "method_not_allowed"
        for near in (path + "/", path.upper(), path + "x"):
            response = await send(server, near, b"{}")
            assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")

    run(scenario)


@on_every_route
@pytest.mark.parametrize("depth", [10_000, 50_000, MAX_NESTING])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
def test_a_body_that_is_nested_too_deeply_is_refused_whatever_the_field(run, path, depth, brackets):
    async def scenario(server: Server) -> None:
        for field in ("user", "unknown", "stop", "prompt", "messages", "tokens", "chat_template_kwargs", "tools"):
            response = await send(server, path, beside(path, f'"{field}": {nested(depth, *brackets)}'))
            assert_refused(response, f"The body may be nested at most {MAX_NESTING} deep.")

    run(scenario)


@on_every_route
def test_an_unknown_field_may_be_nested_as_deep_as_that(run, says, path):
    async def scenario(server: Server) -> None:
        field = f'"unknown": {nested(MAX_NESTING - 1)}, "text": "{"[{" * 1000}"'
        assert (await send(server, path, beside(path, field))).status_code == 200

    run(scenario, says("x"))


@on_every_route
def test_of_a_key_that_is_there_twice_the_last_counts(run, says, path):
    async def scenario(server: Server) -> None:
        assert (await send(server, path, beside(path, '"model": "other", "model": "demo"'))).status_code == 200
        assert (await send(server, path, beside(path, '"model": "demo", "model": "other"'))).status_code == 404

    run(scenario, says("x"))


@on_every_route
@pytest.mark.parametrize(
    "field",
    [
        pytest.param('"user": [' + "[]," * MAX_PARTS + "0]", id="lists"),
        pytest.param('"user": [' + "{}," * MAX_PARTS + "0]", id="objects"),
        pytest.param(", ".join(f'"field {number}": 0' for number in range(MAX_PARTS)), id="keys"),
    ],
)
def test_a_body_of_very_many_parts_is_refused(run, path, field):
    async def scenario(server: Server) -> None:
        assert_refused(await send(server, path, beside(path, field)), f"at most {MAX_PARTS} lists, objects and keys")

    run(scenario)


@on_every_route
@pytest.mark.parametrize("text", ["[{:" * MAX_PARTS, '\\"[{\\\\:' * MAX_PARTS, "\\n:" * 2 * MAX_PARTS])
def test_texts_have_no_parts(run, says, path, text):
    async def scenario(server: Server) -> None:
        assert (await send(server, path, beside(path, f'"user": "{text}"'))).status_code == 200

    run(scenario, says("x"))


@on_every_route
def test_many_unknown_fields_are_as_good_as_none(run, says, path):
    async def scenario(server: Server) -> None:
        fields = ", ".join(f'"field {number}": {number}' for number in range(50_000))
        assert (await send(server, path, beside(path, fields))).status_code == 200

    run(scenario, says("x"))


HUGE = "9" * 400
LONG_LISTS = [
    ("stop", json.dumps(["x"] * 17), "stop"),
    ("stop", json.dumps("x" * 1025), "stop"),
    ("stop_token_ids", json.dumps([1] * 257), "stop_token_ids"),
    ("logit_bias", json.dumps({str(n): 1 for n in range(1025)}), "logit_bias"),
    ("logit_bias", json.dumps({"x" * n: 1 for n in range(1025)}), "logit_bias"),
    ("allowed_token_ids", json.dumps([1] * 50_000), "allowed_token_ids"),
    ("bad_words", json.dumps(["x"] * 257), "bad_words"),
    ("cache_salt", json.dumps("x" * 257), "cache_salt"),
    ("chat_template_kwargs", json.dumps({"date_string": "x" * 1025}), "chat_template_kwargs.date_string"),
    ("messages", json.dumps([{"role": "user", "content": "x"}] * 4097), "messages"),
    ("prompt", json.dumps(["x"] * 1025), "prompt"),
    ("prompt", json.dumps([1] * 257), "prompt"),
    ("prompt", json.dumps("word " * 257), "prompt"),
    ("tokens", json.dumps([1] * 257), "tokens"),
    *[
        (name, HUGE, name)
        for name in ("n", "temperature", "top_k", "seed", "max_tokens", "min_tokens", "priority", "frequency_penalty")
    ],
    ("stop_token_ids", f"[{HUGE}]", "stop_token_ids"),
    ("allowed_token_ids", f"[-{HUGE}]", "allowed_token_ids"),
    ("logit_bias", f'{{"1": {HUGE}}}', "logit_bias"),
    ("logit_bias", f'{{"{HUGE}": 1}}', "logit_bias"),
    ("chat_template_kwargs", f'{{"thinking_budget": {HUGE}}}', "chat_template_kwargs.thinking_budget"),
    ("prompt", f"[{HUGE}]", "prompt"),
    ("prompt", f"[[{HUGE}]]", "prompt"),
    ("tokens", f"[{HUGE}]", "tokens"),
]


@pytest.mark.parametrize(
    ("name", "value", "param"), LONG_LISTS, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(LONG_LISTS)]
)
def test_what_is_too_long_or_too_large_is_refused_by_every_route_that_has_the_field(run, name, value, param):
    async def scenario(server: Server) -> None:
        document = (await server.client.get("/openapi.json")).json()
        routes = [path for path in BODIES if name in fields_of(document, path)]
        if name in ("prompt", "messages"):
            routes.remove("/tokenize")  # counts what is too long for the context
        assert routes
        for path in routes:
            response = await send(server, path, beside(path, f'"{name}": {value}'))
            assert_refused(response)
            assert response.json()["error"]["param"] in (param, name)
        assert not server.engine.seen

    run(scenario)


def fields_of(document: dict, path: str) -> dict:
    (reference,) = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"].values()
    return document["components"]["schemas"][reference.rpartition("/")[2]]["properties"]


# ---- what schemathesis has found


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        *[(path, {"max_tokens": 2.0, "n": 1.0, "stop_token_ids": [5.0], "seed": -0.0}) for path in GENERATES],
        ("/v1/completions", {"prompt": [40.0]}),
        ("/v1/completions", {"prompt": [[40.0], [41]]}),
        ("/detokenize", {"tokens": [40.0]}),
    ],
)
def test_an_integer_may_be_written_with_a_point(run, says, path, fields):
    async def scenario(server: Server) -> None:
        assert (await server.client.post(path, json={**BODIES[path], **fields})).status_code == 200

    run(scenario, says("x"))


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        *[(path, {"max_tokens": 2.5}, "max_tokens") for path in GENERATES],
        *[(path, {"stop_token_ids": [5.5]}, "stop_token_ids[0]") for path in GENERATES],
        ("/v1/completions", {"prompt": [40.5]}, "prompt"),
        ("/detokenize", {"tokens": [40.5]}, "tokens"),
        # true is not 1, and 0 is not false
        *[(path, {"length_penalty": True}, "length_penalty") for path in GENERATES],
        *[(path, {"use_beam_search": 0}, "use_beam_search") for path in GENERATES],
        # what is not looked at may not be anything
        ("/v1/chat/completions", {"max_tokens": 0, "max_completion_tokens": 1}, "max_tokens"),
        *[
            (
                "/v1/chat/completions",
                {"messages": [{"role": "user", "content": "x", **wrong}]},
                "messages[0].tool_calls",
            )
            for wrong in ({"tool_calls": 0}, {"tool_calls": {}}, {"tool_calls": False}, {"function_call": ""})
        ],
    ],
)
def test_what_only_looks_like_what_is_right_is_refused(run, path, fields, param):
    async def scenario(server: Server) -> None:
        response = await server.client.post(path, json={**BODIES[path], **fields})
        assert_refused(response)
        assert response.json()["error"]["param"] == param

    run(scenario)


def test_what_can_be_got_can_be_asked_for_with_head(run):
    async def scenario(server: Server) -> None:
        document = (await server.client.get("/openapi.json")).json()
        for path in (
            path.replace("{model_id}", "demo") for path, methods in document["paths"].items() if "get" in methods
        ):
            got, asked = await server.client.get(path), await server.client.head(path)
            assert got.status_code == asked.status_code == 200
            assert asked.headers["content-type"] == got.headers["content-type"]

    run(scenario)


def test_bodies_that_never_end_are_bounded_together():
    """What has come of a body counts until all of it is there, or its sender has gone away."""
    reader = BodyReader(Limits(vocab_size=1, max_model_len=1, max_body_bytes=100, max_incoming_bytes=250))
    headers = [(b"content-type", b"application/json")]

    async def read(chunks: asyncio.Queue) -> bytearray:
        return await reader.read_json(Request({"type": "http", "method": "POST", "headers": headers}, chunks.get))

    def piece(size: int, *, more: bool) -> dict[str, object]:
        return {"type": "http.request", "body": b"x" * size, "more_body": more}

    async def scenario() -> None:
        senders = [asyncio.Queue() for _ in range(3)]
        reading = [asyncio.create_task(read(sender)) for sender in senders]
        for sender in senders:
            sender.put_nowait(piece(80, more=True))
        while not all(sender.empty() for sender in senders):
            await asyncio.sleep(0)
        late = asyncio.Queue()
        late.put_nowait(piece(20, more=False))
        with pytest.raises(OverloadedError):
            await read(late)
        senders[0].put_nowait(piece(10, more=False))
        assert len(await reading[0]) == 90
        senders[1].put_nowait({"type": "http.disconnect"})
        with pytest.raises(ClientDisconnect):
            await reading[1]
        late.put_nowait(piece(100, more=False))
        assert len(await read(late)) == 100
        reading[2].cancel()

    asyncio.run(scenario())
