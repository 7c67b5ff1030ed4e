"""Logprobs in both schemas, and the echo of a prompt."""

from __future__ import annotations

import pytest

from tests.system.cases.client import CHAT, COMPLETIONS, ask, forcing, post, token_ids
from tests.system.server import Server

pytestmark = pytest.mark.system


def content(server: Server, stream: bool, **fields: object) -> list[dict]:
    answer = ask(server, CHAT, stream, **fields)
    entries = [entry for piece in answer.logprobs[0] for entry in piece["content"]]
    assert len(entries) == answer.usage["completion_tokens"]
    return entries


def test_d01_without_top_logprobs(server: Server, stream: bool) -> None:
    for entry in content(server, stream, logprobs=True):
        assert entry["top_logprobs"] == []
        assert entry["logprob"] < 0


def test_d02_zero_is_not_off(server: Server, stream: bool) -> None:
    answer = ask(server, COMPLETIONS, stream, logprobs=0)
    logprobs = [value for piece in answer.logprobs[0] for value in piece["token_logprobs"]]
    assert len(logprobs) == answer.usage["completion_tokens"]
    assert all(value < 0 for value in logprobs)
    assert not ask(server, COMPLETIONS, stream).logprobs


def test_d03_the_schema_of_chats(server: Server, stream: bool) -> None:
    for entry in content(server, stream, logprobs=True, top_logprobs=3):
        assert entry.keys() == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(entry["top_logprobs"]) == 3
        for top in entry["top_logprobs"]:
            assert top.keys() == {"token", "logprob", "bytes"}
        best = entry["top_logprobs"][0]
        assert (best["token"], best["logprob"]) == (entry["token"], entry["logprob"])  # greedy


def test_d04_logprobs_are_the_models_whatever_changes_the_choice(server: Server, stream: bool) -> None:
    forced = forcing(token_ids(server, "ABCDEFGHIJ"))
    plain = content(server, stream, logprobs=True, top_logprobs=5, **forced)
    for change in ({"temperature": 0.01}, {"temperature": 0.01, "top_p": 0.1}, {"top_k": 3}, {"min_p": 0.5}):
        assert content(server, stream, logprobs=True, top_logprobs=5, **forced | change) == plain
    greedy = content(server, stream, logprobs=True, top_logprobs=5, max_tokens=1)
    for temperature in (0.5, 1):
        entry = content(server, stream, logprobs=True, top_logprobs=5, max_tokens=1, temperature=temperature, seed=1)
        assert entry[0]["top_logprobs"] == greedy[0]["top_logprobs"]


def test_d06_echo_and_nothing_else(server: Server, stream: bool) -> None:
    prompt = "The quick brown ď🔥漢 fox"
    answer = ask(server, COMPLETIONS, stream, prompt=prompt, echo=True, max_tokens=0, logprobs=1)
    assert (answer.text, answer.reasons) == (prompt, {0: "length"})
    assert answer.usage["completion_tokens"] == 0
    logprobs = [value for piece in answer.logprobs[0] for value in piece["token_logprobs"]]
    assert len(logprobs) == answer.usage["prompt_tokens"] == answer.usage["total_tokens"]
    assert logprobs[0] is None
    assert all(value < 0 for value in logprobs[1:])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_prompt_logprobs_of_both_routes(server: Server, path: str) -> None:
    """Twice the same: the second time the prefix cache could have it, and must not be asked."""
    found = []
    for _ in range(2):
        body = {"prompt": "one two three " * 12, "messages": [{"role": "user", "content": "one two three " * 12}]}
        body.pop("messages" if path == COMPLETIONS else "prompt")
        answer = post(server, path, {**body, "max_tokens": 1, "prompt_logprobs": 2}).json()
        first, *others = (answer if path == CHAT else answer["choices"][0])["prompt_logprobs"]
        assert first is None
        assert len(others) == answer["usage"]["prompt_tokens"] - 1
        assert all(2 <= len(place) <= 3 for place in others)
        found.append(others)
    assert found[0] == found[1]
