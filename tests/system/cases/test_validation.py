"""What is refused, and how; and what must not be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from headrace import LLM, SamplingParams
from headrace.errors import RequestError
from tests.system.cases.client import (
    CHAT,
    COMPLETIONS,
    PROMPT,
    ROUTES,
    TOKENIZE,
    Reply,
    ask,
    assert_refused,
    post,
    send,
)
from tests.system.server import Server, talk

pytestmark = pytest.mark.system

VOCAB_SIZE, CONTEXT = 49152, 256
Fields = Mapping[str, object]

ON_BOTH: dict[str, list[tuple[Fields, str]]] = {  # fields, and the parameter that the error names
    "A01": [({"logit_bias": {str(VOCAB_SIZE + 10): 5}}, "logit_bias")],
    "A02": [({"logit_bias": {key: -100}}, "logit_bias") for key in ("AI", "-1", "1.5", "", "1e3", "٣")],
    "A04": [
        ({"stop_token_ids": [VOCAB_SIZE + 5], "min_tokens": 1}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ],
    "A10": [
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": 2}, "min_p"),
        ({"frequency_penalty": 100}, "frequency_penalty"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"temperature": 5}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_k": -2}, "top_k"),
    ],
    "A12": [({"seed": seed}, "seed") for seed in (2**63, 2**64, -(2**63) - 1)],
    "A13": [({"n": n}, "n") for n in (10**9, 0, -1, 129)],
    "A17": [({"max_tokens": -1}, "max_tokens")],
    "A16": [({"max_tokens": 0}, "max_tokens")],
    "A18": [({"min_tokens": 20, "max_tokens": 5}, "min_tokens"), ({"min_tokens": -1}, "min_tokens")],
    "A26": [({"stop": [""]}, "stop"), ({"stop": ["", "x"]}, "stop"), ({"stop": ""}, "stop")],
    "A29": [({"prompt_logprobs": -1}, "prompt_logprobs"), ({"prompt_logprobs": 21}, "prompt_logprobs")],
}

ON_ONE: dict[str, list[tuple[str, Fields, str]]] = {
    "A05": [(COMPLETIONS, {"prompt": prompt}, "prompt") for prompt in ([-1], [[5, -1]])],
    "A06": [
        (COMPLETIONS, {"prompt": prompt}, "prompt")
        for prompt in ([VOCAB_SIZE], [2**40], [5279552648203111001], [2**63], [2**70], [[5], [VOCAB_SIZE]])
    ],
    "A07": [(COMPLETIONS, {"prompt": prompt}, "prompt") for prompt in ("", [""], [], [[]], ["x", ""], [[5], []])],
    "A16": [(CHAT, {"max_completion_tokens": 0}, "max_completion_tokens")],
    "A29": [
        (COMPLETIONS, {"logprobs": -1}, "logprobs"),
        (COMPLETIONS, {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"logprobs": 21, "echo": True, "max_tokens": 0}, "logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
}


def refusals(case: str) -> Iterator[tuple[str, Fields, str]]:
    yield from ON_ONE.get(case, ())
    for fields, param in ON_BOTH.get(case, ()):
        yield from ((path, fields, param) for path in ROUTES)


@pytest.mark.parametrize("case", sorted({*ON_BOTH, *ON_ONE}))
def test_refused(server: Server, stream: bool, case: str) -> None:
    for path, fields, param in refusals(case):
        if "prompt_logprobs" in fields and stream:
            continue  # refused for the stream already, in test_a29
        assert_refused(post(server, path, {**PROMPT[path], "max_tokens": 8, "stream": stream, **fields}), param)


def test_a29_no_prompt_logprobs_in_streams(server: Server) -> None:
    for path in ROUTES:
        assert_refused(post(server, path, {**PROMPT[path], "prompt_logprobs": 1, "stream": True}), "prompt_logprobs")


@pytest.fixture(scope="module")
def llm(tiny_model: Path, demo_tokenizer: str) -> Iterator[LLM]:
    llm = LLM(str(tiny_model), load_format="dummy", tokenizer=demo_tokenizer, max_model_len=CONTEXT)
    yield llm
    llm.shutdown()


@pytest.mark.parametrize("surroundings", ["alone"], indirect=True)
@pytest.mark.parametrize("case", sorted(ON_BOTH))
def test_the_offline_api_refuses_the_same(llm: LLM, case: str) -> None:
    for fields, param in ON_BOTH[case]:
        with pytest.raises(RequestError) as refusal:
            llm.generate("Hello", SamplingParams(**as_offline(fields)))
        assert refusal.value.param == param


def as_offline(fields: Fields) -> dict[str, object]:
    """Where JSON has strings, Python has numbers; and a single stop string is a list of one."""
    bias, stop = fields.get("logit_bias"), fields.get("stop")
    if isinstance(bias, Mapping):
        return {"logit_bias": {int(key) if key.isascii() and key.isdecimal() else key: 5 for key in bias}}
    return {"stop": [stop]} if isinstance(stop, str) else dict(fields)


@pytest.mark.parametrize("surroundings", ["alone"], indirect=True)
@pytest.mark.parametrize("prompt", [[-1], [VOCAB_SIZE], [2**40], [5279552648203111001], "", []], ids=str)
def test_a05_a06_a07_offline(llm: LLM, prompt: str | list[int]) -> None:
    with pytest.raises(RequestError) as refusal:
        llm.generate([prompt])
    assert refusal.value.param == "prompt"


def test_a08_no_messages(server: Server, stream: bool) -> None:
    for path, more in ((CHAT, {"stream": stream}), (TOKENIZE, {})):
        reply = post(server, path, {"messages": [], **more})
        assert_refused(reply, "messages")
        assert "message" in reply.json()["error"]["message"]


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a09_numbers_that_are_none(server: Server, stream: bool, word: str) -> None:
    for path in ROUTES:
        for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_p"):
            body = json.dumps({**PROMPT[path], "stream": stream, name: "here"}).replace('"here"', word)
            reply = post(server, path, body.encode())
            assert_refused(reply, reply.json()["error"]["param"])
            assert reply.json()["error"]["param"] in (None, name)


def test_a12_seeds_at_the_edge_are_served(server: Server, stream: bool) -> None:
    for path in ROUTES:
        for seed in (2**63 - 1, -(2**63), 0):
            assert ask(server, path, stream, seed=seed, temperature=1, n=2).usage["completion_tokens"] == 16


def test_a13_many_choices_cost_nothing(server: Server, stream: bool) -> None:
    before = resident_kb(server)
    for path in ROUTES:
        for _ in range(20):
            assert_refused(post(server, path, {**PROMPT[path], "n": 10**9, "stream": stream}), "n")
    assert resident_kb(server) - before < 5_000


def test_a15_max_tokens_null_is_what_the_context_leaves(server: Server, stream: bool) -> None:
    answer = ask(server, COMPLETIONS, stream, max_tokens=None)
    assert answer.usage["total_tokens"] == CONTEXT
    assert answer.reasons == {0: "length"}


def assert_error_shape(reply: Reply, status: int) -> None:
    assert_refused(reply, reply.json()["error"]["param"], status)


def test_a22_every_error_is_under_error(server: Server, stream: bool) -> None:
    plain = json.dumps(PROMPT[COMPLETIONS]).encode()
    assert_error_shape(send(server, "GET", "/v1/nothing"), 404)
    assert_error_shape(send(server, "GET", COMPLETIONS), 405)
    assert_error_shape(send(server, "DELETE", "/v1/models"), 405)
    assert_error_shape(send(server, "GET", "/v1/models/nothing"), 404)
    assert_error_shape(send(server, "POST", COMPLETIONS, plain, {"Content-Type": "text/plain"}), 400)
    assert_error_shape(send(server, "POST", COMPLETIONS, plain), 400)
    for path in (*ROUTES, TOKENIZE, "/detokenize"):
        for body in (b"", b"{", b"[]", b"null", b'"x"', b"{}", b"\xff\xfe", b'{"model": 5}', b'{"prompt": {}}'):
            assert_error_shape(post(server, path, body), 400)
        assert_error_shape(
            post(server, path, {**PROMPT.get(path, {"tokens": [5]}), "model": "another", "stream": stream}), 404
        )


def test_a22_bytes_that_are_no_http(server: Server) -> None:
    status, answer = talk(server, b"\x16\x03\x01 this is TLS\r\n\r\n")
    assert status == 400
    assert answer["error"].keys() == {"message", "type", "param", "code"}


def test_a23_too_long_for_the_context_is_known_before_the_first_event(server: Server) -> None:
    for path, fields in ((COMPLETIONS, {"prompt": "word " * 300}), (CHAT, {"messages": long_message(300)})):
        reply = post(server, path, {**fields, "stream": True})
        assert_refused(reply, "messages" if path == CHAT else "prompt")


def test_a24_both_sizes_are_named_and_nothing_is_cut(server: Server, stream: bool) -> None:
    requests = (
        (COMPLETIONS, {"prompt": [5] * (2 * CONTEXT)}, 2 * CONTEXT),
        (COMPLETIONS, {"prompt": " word" * (2 * CONTEXT)}, 2 * CONTEXT),
        (COMPLETIONS, {"prompt": [5] * CONTEXT}, CONTEXT),
        (COMPLETIONS, {"prompt": [5] * 250, "max_tokens": 7}, 257),
        (CHAT, {"messages": long_message(2 * CONTEXT)}, None),
    )
    for path, fields, size in requests:
        reply = post(server, path, {**fields, "stream": stream})
        assert_refused(reply, "messages" if path == CHAT else "prompt")
        numbers = set(map(int, re.findall(r"\d+", reply.json()["error"]["message"])))
        assert CONTEXT in numbers
        assert size in numbers or (size is None and max(numbers) > 2 * CONTEXT)
    assert ask(server, COMPLETIONS, stream, prompt=[5] * 250, max_tokens=6).usage["total_tokens"] == CONTEXT


def long_message(num_words: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": " word" * num_words}]


def test_a28_a_header_without_end(server: Server) -> None:
    before = resident_kb(server)
    start = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: "
    status, answer = talk(server, start, *[b"x" * 2**20] * 50)
    assert (status, answer["error"]["code"]) == (431, "headers_too_large")
    assert resident_kb(server) - before < 10_000


def resident_kb(server: Server) -> int:
    status = Path(f"/proc/{server.processes()['headrace-api-0']}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])
