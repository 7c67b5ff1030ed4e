"""A client that believes nothing: raw bodies, and a strict reading of what comes back."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.system.server import PATIENCE_S, Server

CHAT, COMPLETIONS, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
ROUTES = (CHAT, COMPLETIONS)
HELLO = [{"role": "user", "content": "Hello"}]
PROMPT = {CHAT: {"messages": HELLO}, COMPLETIONS: {"prompt": "Hello"}, TOKENIZE: {"prompt": "Hello"}}


@dataclass(frozen=True)
class Reply:
    status: int
    media_type: str
    body: bytes

    def json(self) -> dict:
        """Valid JSON in the narrow sense: no NaN, no infinity."""
        return json.loads(self.body, parse_constant=_refuse_constant)

    def events(self) -> list[dict]:
        """`data: <JSON>` and an empty line, again and again, then [DONE]."""
        assert (self.status, self.media_type) == (200, "text/event-stream"), self.body
        *payloads, done = self.payloads()
        assert done == "[DONE]"
        return [json.loads(payload, parse_constant=_refuse_constant) for payload in payloads]

    def payloads(self) -> list[str]:
        text = self.body.decode()  # valid UTF-8
        assert text.endswith("\n\n")
        blocks = text[:-2].split("\n\n")
        assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
        return [block.removeprefix("data: ") for block in blocks]


def _refuse_constant(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def post(
    server: Server, path: str, body: Mapping[str, object] | bytes, headers: Mapping[str, str] | None = None
) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return send(server, "POST", path, data, {"Content-Type": "application/json", **(headers or {})})


def send(server: Server, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Reply:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        media_type = response.headers.get("content-type", "").partition(";")[0]
        return Reply(response.status, media_type, response.read())
    finally:
        connection.close()


@dataclass
class Answer:
    """An answer of either route, streamed or not, in one form. By the index of the choice."""

    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[dict]] = field(default_factory=dict)  # each choice's pieces, of either schema
    pieces: dict[int, list[str]] = field(default_factory=dict)  # the text as it came
    usage: dict | None = None

    @property
    def text(self) -> str:
        """Of the only choice."""
        (text,) = self.texts.values()
        return text

    def take(self, choice: dict) -> None:
        index = choice["index"]
        message = choice.get("message") or choice.get("delta") or {}
        text = choice.get("text") or message.get("content") or ""
        self.texts[index] = self.texts.get(index, "") + text
        self.pieces.setdefault(index, []).append(text)
        if choice["logprobs"] is not None:
            self.logprobs.setdefault(index, []).append(choice["logprobs"])
        if choice["finish_reason"] is not None:
            assert index not in self.reasons
            self.reasons[index] = choice["finish_reason"]


def ask(server: Server, path: str, stream: bool = False, **fields: object) -> Answer:
    """A request that must be served. Greedy unless `fields` say otherwise."""
    body = {**PROMPT[path], "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
    if not stream:
        reply = post(server, path, body)
        assert (reply.status, reply.media_type) == (200, "application/json"), reply.body
        messages = [reply.json()]
    else:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        messages = post(server, path, {**options, **body}).events()
    answer = Answer(usage=messages[-1]["usage"])
    for message in messages:
        for choice in message["choices"]:
            answer.take(choice)
    return answer


def token_ids(server: Server, text: str) -> list[int]:
    return post(server, TOKENIZE, {"prompt": text, "add_special_tokens": False}).json()["tokens"]


def forcing(ids: list[int]) -> dict[str, object]:
    """Fields that make a greedy answer of these tokens, which must differ from each other and from the prompt's: each
    is preferred to the next by far, and what has come once is pushed down."""
    return {
        "temperature": 0,
        "max_tokens": len(ids),
        "allowed_token_ids": ids,
        "logit_bias": {str(token_id): 100 - 5 * place for place, token_id in enumerate(ids)},
        "repetition_penalty": 100,
        "ignore_eos": True,
    }


def assert_refused(reply: Reply, param: str | None, status: int = 400) -> None:
    """An error of the API's shape: small, without a trace of the inside."""
    assert (reply.status, reply.media_type) == (status, "application/json"), reply.body
    answer = reply.json()
    assert answer.keys() == {"error"}
    error = answer["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] == param, error
    assert len(reply.body) < 1000
    for trace in ("Traceback", 'File "', ".py", "0x"):
        assert trace not in error["message"]
