"""Logprobs in the two schemas of the OpenAI API, whole and streamed. Ids such as D01 are those of the case list."""

from __future__ import annotations

import asyncio
import math
import threading

import pytest

from headrace.contracts.model_runner import TokenLogprobs
from headrace.frontend.http.openai.request_body import MAX_LOGPROBS_AT_ONCE
from headrace.frontend.logprobs import LogprobsReader
from headrace.frontend.request_output import CompletionOutput
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


# ---- prompts


def joined(answers: list[dict]) -> dict[int, str]:
    """The text of each choice."""
    texts: dict[int, str] = {}
    for choice in (choice for answer in answers for choice in answer["choices"]):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_top", [0, 2])
def test_b11_echo_with_logprobs(run, says, stream, num_top):
    async def scenario(server: Server) -> None:
        prompt = "Hello ď there"
        answers = await answers_of(server, COMPLETIONS, stream, prompt=prompt, echo=True, logprobs=num_top, n=2)
        assert joined(answers) == {0: prompt + TEXT, 1: prompt + TEXT}
        assert [request.sampling_params.prompt_logprobs for request in server.engine.seen] == [num_top, None]
        for index in (0, 1):
            choices = [choice for answer in answers for choice in answer["choices"] if choice["index"] == index]
            lists = completion_lists([{"choices": choices}])
            assert lists["tokens"][0] == "Hello"
            assert lists["tokens"][-1] == "<|im_end|>"
            assert lists["token_logprobs"] == [None] + [HALF] * (len(lists["tokens"]) - 1)
            assert lists["top_logprobs"][0] is None
            assert {len(top) for top in lists["top_logprobs"][1:]} == {num_top + 1}
            whole = prompt + TEXT
            for token, offset in zip(lists["tokens"], lists["text_offset"], strict=True):
                assert token.endswith("\ufffd") or token == "<|im_end|>" or whole.startswith(token, offset)
            assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]

    run(scenario, says(TEXT, TEXT))


@pytest.mark.parametrize("stream", [False, True])
def test_d06_echo_alone(run, says, stream):
    """`max_tokens: 0` gives the prompt and nothing else: no token, no text, no logprob of what was not asked for."""

    async def scenario(server: Server) -> None:
        for logprobs in (None, 0, 1):
            more = {"stream_options": {"include_usage": True}} if stream else {}
            answers = await answers_of(
                server, COMPLETIONS, stream, prompt="Hello there", echo=True, max_tokens=0, logprobs=logprobs, **more
            )
            assert joined(answers) == {0: "Hello there"}
            assert answers[-1]["usage"]["completion_tokens"] == 0
            reasons = [choice["finish_reason"] for answer in answers for choice in answer["choices"]]
            assert [reason for reason in reasons if reason is not None] == ["length"]
            if logprobs is not None:
                assert completion_lists(answers)["tokens"] == ["Hello", " there"]

    run(scenario, says("Hello"))


@pytest.mark.parametrize("stream", [False, True])
def test_echo_of_token_ids_and_of_several_prompts(run, says, tokenizer, stream):
    async def scenario(server: Server) -> None:
        prompts = [tokenizer.encode(text, add_special_tokens=False) for text in ("Hello there", "<|im_start|>Hi")]
        answers = await answers_of(server, COMPLETIONS, stream, prompt=prompts, echo=True, logprobs=0)
        assert joined(answers) == {0: "Hello there one", 1: "Hi two"}
        spelled = await answers_of(server, COMPLETIONS, stream, prompt="<|im_start|>Hi", echo=True, logprobs=0)
        assert joined(spelled) == {0: "<|im_start|>Hi three"}  # what the caller wrote comes back as it is
        assert completion_lists(spelled)["text_offset"][:3] == [0, 12, 14]

    run(scenario, says(" one", " two", " three"))


def test_echo_without_logprobs_asks_the_engine_for_none(run, says):
    async def scenario(server: Server) -> None:
        (answer,) = await answers_of(server, COMPLETIONS, False, prompt="Hello", echo=True)
        assert answer["choices"][0]["text"] == "Hello there"
        assert answer["choices"][0]["logprobs"] is None
        assert server.engine.seen[0].sampling_params.prompt_logprobs is None

    run(scenario, says(" there"))


@pytest.mark.parametrize(
    ("fields", "param"), [({"echo": True, "logprobs": 20}, "logprobs"), ({"prompt_logprobs": 20}, "prompt_logprobs")]
)
def test_an_answer_has_no_more_logprobs_of_prompts_than_fit_it(run, says, fields, param):
    """A small request for half a gigabyte."""

    async def scenario(server: Server) -> None:
        response = await server.complete(prompt=[[40] * 250] * 8, n=128, max_tokens=1, **fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
        assert not server.engine.seen

    run(scenario, says("x"))


@pytest.mark.parametrize("num_top", [0, 2])
def test_prompt_logprobs(run, says, num_top):
    """vLLM's field: of a completion in each choice, of a chat beside the choices."""

    async def scenario(server: Server) -> None:
        (answer,) = await answers_of(server, COMPLETIONS, False, prompt=["Hello there", "Hi"], prompt_logprobs=num_top)
        first, second = (choice["prompt_logprobs"] for choice in answer["choices"])
        assert (len(first), len(second)) == (2, 1)
        (there,) = server.engine.seen[0].prompt_token_ids[1:]
        assert first[0] is None
        assert first[1][str(there)] == {"logprob": HALF, "rank": 2, "decoded_token": " there"}
        assert [first[1][str(100 + place)]["rank"] for place in range(num_top)] == list(range(1, num_top + 1))
        assert len(first[1]) == num_top + 1
        (chat,) = await answers_of(server, CHAT, False, prompt_logprobs=num_top)
        assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
        (plain,) = await answers_of(server, CHAT, False)
        assert "prompt_logprobs" not in plain
        refused = await server.client.post(CHAT, json={**BASE[CHAT], "prompt_logprobs": 1, "stream": True})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")

    run(scenario, says("one", "two", "three", "four"))


def test_choices_that_come_before_the_logprobs_of_the_prompt_wait_for_them(run, says):
    """Only the first choice's sequence computes them; the others may be quicker, as the prefix cache has the prompt."""

    async def scenario(server: Server) -> None:
        engine = server.engine
        engine.holds = lambda request: request.sampling_params.prompt_logprobs is not None
        fields = {"prompt": "Hello", "echo": True, "logprobs": 0, "n": 2, "stream": True}
        task = asyncio.create_task(server.client.post(COMPLETIONS, json=fields))
        await engine.until(lambda engine: len(engine.seen) == 2 and len(engine.requests) == 1)
        engine.answer(engine.seen[0])
        assert joined(events((await task).text)) == {0: "Hello two", 1: "Hello one"}

    run(scenario, says(" one", " two"))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True}),
        ("/v1/completions", {"prompt": "Hi", "logprobs": 2}),
    ],
)
@pytest.mark.parametrize(("num_tokens", "in_thread"), [(MAX_LOGPROBS_AT_ONCE, False), (MAX_LOGPROBS_AT_ONCE + 1, True)])
def test_h11_many_logprobs_are_written_out_in_the_input_threads(run, monkeypatch, path, fields, num_tokens, in_thread):
    threads = []
    read = LogprobsReader.read

    def record(*args):
        threads.append(threading.current_thread().name.startswith("headrace-input"))
        return read(*args)

    async def scenario(server: Server) -> None:
        monkeypatch.setattr(LogprobsReader, "read", record)
        response = await server.client.post(path, json={**fields, "max_tokens": num_tokens})
        assert response.json()["usage"]["completion_tokens"] == num_tokens
        assert threads == [in_thread]

    run(scenario, lambda request: [40] * num_tokens)


class Pieces:
    """Tokens that are these bytes."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def is_special(self, token_id: int) -> bool:
        return False


@pytest.mark.parametrize(
    ("pieces", "offsets"),
    [
        ([b"a", "é".encode(), b"b"], [0, 1, 2]),
        (["🔥".encode()[:1], "🔥".encode()[1:3], "🔥".encode()[3:], b"b"], [0, 0, 0, 1]),
        (["🔥".encode()[:2], b"b", b"c"], [0, 1, 2]),  # the begun character is U+FFFD
        (["🔥".encode()[:2], "é".encode()[:1], "é".encode()[1:], b"c"], [0, 1, 1, 2]),
        ([b"\xff", b"b"], [0, 1]),
        (["\ufffd".encode()[:2], "\ufffd".encode()[2:], b"b"], [0, 0, 1]),
    ],
)
def test_where_tokens_begin_that_are_pieces_of_characters(pieces, offsets):
    reader = LogprobsReader(Pieces(*pieces), skip_special_tokens=True, with_ids=False)
    found = [TokenLogprobs(-1.0, 1)] * len(pieces)
    places = reader.read(0, CompletionOutput(0, "", list(range(len(pieces))), logprobs=found))
    assert [place.offset for place in places] == offsets
