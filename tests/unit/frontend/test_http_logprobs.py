"""Logprobs in the two schemas of the OpenAI API, whole and streamed. Ids such as D01 are those of the case list."""

from __future__ import annotations

import math

import pytest

from tests.unit.frontend.serving import Server
from tests.unit.frontend.test_http import BASE, CHAT, COMPLETIONS, events

TEXT = "ď🔥漢 and so on"
HALF = pytest.approx(math.log(0.5))


def chat_content(answers: list[dict]) -> list[dict]:
    found = [choice["logprobs"] for answer in answers for choice in answer["choices"] if choice["logprobs"]]
    assert all(logprobs["refusal"] is None for logprobs in found)
    return [entry for logprobs in found for entry in logprobs["content"]]


def completion_lists(answers: list[dict]) -> dict[str, list]:
    joined: dict[str, list] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for logprobs in (choice["logprobs"] for answer in answers for choice in answer["choices"]):
        if logprobs is not None:
            assert logprobs.keys() == joined.keys()
            for name, values in logprobs.items():
                joined[name] += values
    return joined


async def answers_of(server: Server, path: str, stream: bool, **fields) -> list[dict]:
    response = await server.client.post(path, json={**BASE[path], "stream": stream, **fields})
    assert response.status_code == 200, response.text
    return events(response.text) if stream else [response.json()]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_top", [None, 0, 3])
def test_c04_d01_d03_chat(run, says, stream, num_top):
    async def scenario(server: Server) -> None:
        fields = {"logprobs": True} if num_top is None else {"logprobs": True, "top_logprobs": num_top}
        answers = await answers_of(server, CHAT, stream, skip_special_tokens=False, **fields)
        content = chat_content(answers)
        assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == TEXT + "<|im_end|>"
        for entry in content:
            assert entry.keys() == {"token", "logprob", "bytes", "top_logprobs"}
            assert entry["token"] == bytes(entry["bytes"]).decode(errors="replace")
            assert entry["logprob"] == HALF
            assert [top["logprob"] for top in entry["top_logprobs"]] == [
                pytest.approx(math.log(0.9 / 2**place)) for place in range(num_top or 0)
            ]
            assert all(top.keys() == {"token", "logprob", "bytes"} for top in entry["top_logprobs"])

    run(scenario, says(TEXT))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_top", [0, 2])
def test_d02_completions(run, says, stream, num_top):
    async def scenario(server: Server) -> None:
        answers = await answers_of(server, COMPLETIONS, stream, logprobs=num_top)
        lists = completion_lists(answers)
        tokens = lists["tokens"]
        assert tokens[-1] == "<|im_end|>"  # it ended the answer: counted, and no part of the text
        assert lists["token_logprobs"] == [HALF] * len(tokens)
        for token, top in zip(tokens, lists["top_logprobs"], strict=True):
            assert len(top) == num_top + 1
            assert top[token] == HALF
        text = "".join(choice["text"] for answer in answers for choice in answer["choices"])
        assert text == TEXT
        begins = dict(zip(tokens, lists["text_offset"], strict=True))
        assert [begins[word] for word in (" and", " so", " on", "<|im_end|>")] == [3, 7, 10, 13]
        assert lists["text_offset"] == sorted(lists["text_offset"])

    run(scenario, says(TEXT))


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_end_where_the_tokens_end(run, says, stream):
    """A stop string ends the answer before the engine knows; a slow reader gets several tokens at once."""

    async def scenario(server: Server) -> None:
        content = chat_content(await answers_of(server, CHAT, stream, logprobs=True, stop="so"))
        assert [entry["token"] for entry in content[-2:]] == [" and", " so"]
        assert not chat_content(await answers_of(server, CHAT, stream, stop="so"))

    run(scenario, says(TEXT))


def test_tokens_as_ids(run, says):
    async def scenario(server: Server) -> None:
        (answer,) = await answers_of(server, COMPLETIONS, False, logprobs=1, return_tokens_as_token_ids=True)
        logprobs = answer["choices"][0]["logprobs"]
        assert logprobs["tokens"][-1] == "token_id:2"
        assert logprobs["top_logprobs"][-1].keys() == {"token_id:2", "token_id:100"}

    run(scenario, says("Hi"))


def test_each_choice_has_its_own_offsets(run, says):
    async def scenario(server: Server) -> None:
        (answer,) = await answers_of(server, COMPLETIONS, False, logprobs=0, n=2, prompt=["a", "b"])
        assert [choice["logprobs"]["text_offset"][0] for choice in answer["choices"]] == [0, 0, 0, 0]

    run(scenario, says("one", "two", "three", "four"))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_changes_logits_reaches_the_engine(run, says, path):
    async def scenario(server: Server) -> None:
        fields = {
            "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.5,
            "logit_bias": {"17": -100, "18": 2.5}, "allowed_token_ids": [17, 18, 19], "bad_words": ["there", " the re"],
        }  # fmt: skip
        await answers_of(server, path, False, **fields)
        params = server.engine.seen[0].sampling_params
        assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.5, -0.5, 1.5)
        assert params.logit_bias == {17: -100, 18: 2.5}
        assert params.allowed_token_ids == (17, 18, 19)
        assert params.bad_words == ()
        encode = server.llm.tokenizer.encode
        texts = ("there", " there", "the re", " the re")
        assert params.bad_token_ids == tuple(tuple(encode(text, add_special_tokens=False)) for text in texts)

    run(scenario, says("Hi"))
