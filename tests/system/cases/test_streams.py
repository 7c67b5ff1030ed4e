"""How streams are framed, and that they say what an answer in one piece says."""

from __future__ import annotations

import json

import pytest

from tests.system.cases.client import CHAT, COMPLETIONS, PROMPT, ROUTES, ask, post
from tests.system.cases.faults.sitecustomize import FAILS_MIDWAY
from tests.system.server import Server

pytestmark = pytest.mark.system

STREAM = {"stream": True, "temperature": 0, "max_tokens": 6, "ignore_eos": True}
WITH_USAGE = {"stream_options": {"include_usage": True}}

MIXES: dict[str, dict[str, object]] = {
    "plain": {},
    "n": {"n": 3},
    "sampled": {"temperature": 1, "seed": 5, "n": 2, "top_p": 0.9, "top_k": 50, "min_p": 0.01},
    "penalties": {"presence_penalty": 1, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "stop": {"stop": ["e", "the next word"], "max_tokens": 60},
    "stop shown": {"stop": ["e", "the next word"], "max_tokens": 60, "include_stop_str_in_output": True},
    "stop late": {"stop": ["e"], "max_tokens": 60, "min_tokens": 30},
    "special": {"skip_special_tokens": False, "logit_bias": {"2": 100, "0": 100}},
    "special skipped": {"skip_special_tokens": True, "logit_bias": {"2": 12, "0": 12}, "temperature": 1, "seed": 1},
    "until eos": {"ignore_eos": False, "logit_bias": {"2": 7.5}, "temperature": 1, "seed": 2, "max_tokens": 60},
    "bytes": {"allowed_token_ids": list(range(100, 240)), "temperature": 1, "seed": 3, "max_tokens": 60},
    "bad words": {"bad_words": ["the", "e"], "max_tokens": 20},
}


@pytest.mark.parametrize("path", ROUTES)
def test_b01_usage_comes_once_and_last(server: Server, path: str) -> None:
    *events, last = post(server, path, {**PROMPT[path], **STREAM, **WITH_USAGE, "n": 2}).events()
    assert all(event["usage"] is None and event["choices"] for event in events)
    assert last["choices"] == []
    usage = last["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12
    assert usage == ask(server, path, n=2, max_tokens=6).usage | {
        "prompt_tokens_details": usage["prompt_tokens_details"]
    }


@pytest.mark.parametrize("path", ROUTES)
def test_b03_no_usage_that_was_not_asked_for(server: Server, path: str) -> None:
    for more in ({}, {"stream_options": {}}, {"stream_options": None}, {"stream_options": {"include_usage": False}}):
        events = post(server, path, {**PROMPT[path], **STREAM, **more}).events()
        assert all("usage" not in event and event["choices"] for event in events)


@pytest.mark.parametrize("path", ROUTES)
def test_b04_one_finish_reason_for_each_choice(server: Server, path: str) -> None:
    events = post(server, path, {**PROMPT[path], **STREAM, "n": 3}).events()
    choices = [choice for event in events for choice in event["choices"]]
    assert all("finish_reason" in choice for choice in choices)
    for index in range(3):
        *earlier, last = [choice["finish_reason"] for choice in choices if choice["index"] == index]
        assert set(earlier) == {None}
        assert last == "length"


def test_b05_each_choice_begins_with_its_role(server: Server) -> None:
    events = post(server, CHAT, {**PROMPT[CHAT], **STREAM, "n": 2}).events()
    for index in range(2):
        first, *later = [c for event in events for c in event["choices"] if c["index"] == index]
        assert first["delta"]["role"] == "assistant"
        assert all("role" not in choice["delta"] for choice in later)
        assert later[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("path", ROUTES)
def test_b09_cut_by_length(server: Server, path: str) -> None:
    whole, streamed = (ask(server, path, stream, max_tokens=10) for stream in (False, True))
    assert streamed.reasons == whole.reasons == {0: "length"}
    assert streamed.texts == whole.texts
    assert streamed.usage["completion_tokens"] == whole.usage["completion_tokens"] == 10


@pytest.mark.parametrize("path", ROUTES)
def test_b10_a_failure_midway_ends_the_stream_with_an_error(server: Server, path: str) -> None:
    reply = post(server, path, {**PROMPT[path], **STREAM, "max_tokens": 20, "seed": FAILS_MIDWAY, **WITH_USAGE})
    assert reply.status == 200
    *events, last = map(json.loads, reply.payloads())  # and no [DONE]
    assert sum("error" in event for event in events) == 0
    assert last.keys() == {"error"}
    assert last["error"]["type"] == "server_error"
    assert {choice["finish_reason"] for event in events for choice in event["choices"]} == {None}
    whole = post(server, path, {**PROMPT[path], "max_tokens": 20, "ignore_eos": True, "seed": FAILS_MIDWAY})
    assert (whole.status, whole.json()) == (500, last)


def test_b11_echo_with_logprobs(server: Server) -> None:
    answers = [
        ask(server, COMPLETIONS, stream, prompt="The quick brown fox", echo=True, logprobs=1, n=2)
        for stream in (False, True)
    ]
    whole, streamed = answers
    assert streamed.texts == whole.texts
    assert all(text.startswith("The quick brown fox") for text in whole.texts.values())
    assert streamed.usage["completion_tokens"] == whole.usage["completion_tokens"] == 16
    for index in (0, 1):
        lists = [
            {name: [value for piece in answer.logprobs[index] for value in piece[name]] for name in NAMES}
            for answer in answers
        ]
        assert lists[0] == lists[1]
        assert len(lists[0]["tokens"]) == whole.usage["prompt_tokens"] + 8
        assert lists[0]["token_logprobs"][0] is None
        assert None not in lists[0]["token_logprobs"][1:]


NAMES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("mix", MIXES)
def test_b12_streamed_is_not_streamed(server: Server, path: str, mix: str) -> None:
    with_logprobs = {CHAT: {"logprobs": True, "top_logprobs": 2}, COMPLETIONS: {"logprobs": 2, "echo": True}}
    for more in ({}, with_logprobs[path]):
        whole, streamed = (ask(server, path, stream, **MIXES[mix], **more) for stream in (False, True))
        assert streamed.texts == whole.texts
        assert streamed.reasons == whole.reasons
        assert streamed.usage["completion_tokens"] == whole.usage["completion_tokens"]
        assert "".join(whole.texts.values())
