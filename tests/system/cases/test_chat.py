"""Chat templates: their words reach the client, and their BOS is the only one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import LLM
from tests.system.cases.client import CHAT, HELLO, TOKENIZE, ask, assert_refused, post
from tests.system.cases.conftest import STRICT_TEMPLATE
from tests.system.server import Server

pytestmark = pytest.mark.system

BOS = 1  # <|im_start|>, which this tokenizer's facts call so
ALTERNATE = "Conversation roles must alternate"


def turns(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": "x"} for role in roles]


def test_e01_the_templates_own_words(strict_server: Server, stream: bool) -> None:
    for path, more in ((CHAT, {"stream": stream}), (TOKENIZE, {})):
        reply = post(strict_server, path, {"messages": turns("system", "user"), **more})
        assert_refused(reply, "messages")
        assert "System role not supported" in reply.json()["error"]["message"]


def test_e02_turns_that_do_not_alternate(strict_server: Server, stream: bool) -> None:
    for roles in (("user", "user"), ("user", "assistant", "assistant"), ("assistant", "user")):
        reply = post(strict_server, CHAT, {"messages": turns(*roles), "stream": stream})
        assert_refused(reply, "messages")
        assert ALTERNATE in reply.json()["error"]["message"]
    assert_refused(
        post(strict_server, CHAT, {"messages": turns("user", "system", "user"), "stream": stream}), "messages"
    )


def test_e02_nothing_is_merged_where_the_template_allows_it(server: Server) -> None:
    counts = [
        post(server, TOKENIZE, {"messages": turns(*roles)}).json()["count"]
        for roles in (("user",), ("user", "user"), ("user", "user", "system", "user"))
    ]
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.parametrize("calls", [[], None])
def test_e03_no_tool_calls_are_none(strict_server: Server, server: Server, stream: bool, calls: list | None) -> None:
    plain = turns("user", "assistant", "user")
    with_key = [plain[0], plain[1] | {"tool_calls": calls}, plain[2]]
    for of in (server, strict_server):
        assert ask(of, CHAT, stream, messages=with_key).text == ask(of, CHAT, stream, messages=plain).text


def test_e05_one_bos(strict_server: Server, stream: bool) -> None:
    tokens = post(strict_server, TOKENIZE, {"messages": HELLO}).json()["tokens"]
    assert tokens[0] == BOS
    assert tokens.count(BOS) == 1
    assert ask(strict_server, CHAT, stream, messages=HELLO).usage["prompt_tokens"] == len(tokens)


@pytest.mark.parametrize("surroundings", ["alone"], indirect=True)
def test_e05_offline(strict_server: Server, tiny_model: Path, demo_tokenizer: str) -> None:
    llm = LLM(
        str(tiny_model),
        load_format="dummy",
        tokenizer=demo_tokenizer,
        max_model_len=256,
        chat_template=STRICT_TEMPLATE,
    )
    (output,) = llm.chat(HELLO)
    llm.shutdown()
    assert output.prompt_token_ids == post(strict_server, TOKENIZE, {"messages": HELLO}).json()["tokens"]
