"""The OpenAI routes: answers, whole and streamed, and what is refused. Ids such as A05 are those of the case list."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.contracts.engine import EngineCoreOutput, FinishReason
from headrace.frontend.http.openai.unsupported import is_one_edit_away
from tests.unit.frontend.serving import Server, run_scenario, script_of

VOCAB_SIZE = 49152
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hi"}]
BASE = {CHAT: {"messages": HELLO}, COMPLETIONS: {"prompt": "Hi"}}


def events(text: str) -> list[dict]:
    """The strict reading of a stream: `data: <JSON>` and an empty line, again and again, then [DONE]."""
    assert text.endswith("\n\n")
    blocks = text[:-2].split("\n\n")
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]


def usage(num_prompt: int, num_generated: int, num_cached: int = 0) -> dict:
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_generated,
        "total_tokens": num_prompt + num_generated,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


def text_of(choice: dict) -> str:
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


# ---- answers


def test_chat(run, says):
    async def scenario(server: Server) -> None:
        answer = (await server.chat()).json()
        assert answer["object"] == "chat.completion"
        assert answer["id"].startswith("chatcmpl-")
        assert answer["model"] == "demo"
        (choice,) = answer["choices"]
        assert choice["message"] == {"role": "assistant", "content": "Hello there", "refusal": None}
        assert choice["finish_reason"] == "stop"
        assert answer["usage"] == usage(31, 3)

    run(scenario, says("Hello there"))


@pytest.mark.parametrize("prompt", ["Hi", ["Hi"], [26843], [[26843]]])
def test_the_four_forms_of_a_prompt(run, says, prompt):
    async def scenario(server: Server) -> None:
        answer = (await server.complete(prompt=prompt)).json()
        assert answer["object"] == "text_completion"
        assert answer["choices"] == [{"index": 0, "text": " there", "logprobs": None, "finish_reason": "stop"}]
        assert answer["usage"] == usage(1, 2)

    run(scenario, says(" there"))


@pytest.mark.parametrize("stream", [False, True])
def test_choices_of_several_prompts_are_numbered_through(run, says, stream):
    async def scenario(server: Server) -> None:
        response = await server.complete(prompt=["a", "b"], n=2, stream=stream)
        answers = events(response.text) if stream else [response.json()]
        texts = ["", "", "", ""]
        for answer in answers:
            for choice in answer["choices"]:
                texts[choice["index"]] += choice["text"]
        assert texts == ["one", "two", "three", "four"]

    run(scenario, says("one", "two", "three", "four"))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("with_usage", [False, True])
def test_b01_b03_b04_b05_the_order_and_the_keys_of_a_stream(run, says, path, with_usage):
    async def scenario(server: Server) -> None:
        options = {"stream_options": {"include_usage": True}} if with_usage else {}
        response = await server.client.post(path, json={**BASE[path], "stream": True, "n": 2, **options})
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        chunks = events(response.text)
        assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
        if with_usage:
            last = chunks.pop()
            assert last["choices"] == []
            assert last["usage"]["completion_tokens"] == 6
            assert all(chunk["usage"] is None for chunk in chunks)
        assert all("usage" not in chunk for chunk in chunks) or with_usage
        for index in (0, 1):
            mine = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
            assert all("finish_reason" in choice for choice in mine)
            assert [choice["finish_reason"] for choice in mine if choice["finish_reason"] is not None] == ["stop"]
            assert mine[-1]["finish_reason"] == "stop"
            assert "".join(map(text_of, mine)) == "Hello there"
            if path == CHAT:
                assert mine[0]["delta"] == {"role": "assistant", "content": ""}
                assert all("role" not in choice["delta"] for choice in mine[1:])
                assert mine[-1]["delta"] == {}

    run(scenario, says("Hello there"))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 3}, {"stop": "you"}, {"stop": ["you", "漢"], "include_stop_str_in_output": True},
        {"stop": "never met"}, {"n": 2, "max_tokens": 5}, {"skip_special_tokens": False}, {"max_tokens": 9},
    ],
)  # fmt: skip
def test_b09_b12_joined_deltas_are_the_whole_text(run, says, path, options):
    async def scenario(server: Server) -> None:
        whole = (await server.client.post(path, json={**BASE[path], **options})).json()
        chunks = events((await server.client.post(path, json={**BASE[path], **options, "stream": True})).text)
        for choice in whole["choices"]:
            mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
            text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
            assert "".join(map(text_of, mine)) == text
            assert mine[-1]["finish_reason"] == choice["finish_reason"]
            if "max_tokens" in options:
                assert choice["finish_reason"] == "length"

    run(scenario, says("I see 漢字 and 🔥, do you never?"))


def test_c05_a_stop_string_over_several_tokens_never_shows(run, says):
    async def scenario(server: Server) -> None:
        chunks = events((await server.complete(stop=["DEFGHIJ"], stream=True)).text)
        assert "".join(text_of(choice) for chunk in chunks for choice in chunk["choices"]) == "ABC"
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"

    run(scenario, says("ABCDEFGHIJ"))


def test_a15_null_asks_for_what_the_context_leaves_and_absence_for_openais_default(run):
    async def scenario(server: Server) -> None:
        counts = [
            (await server.complete(**fields)).json()["usage"]["completion_tokens"]
            for fields in ({"max_tokens": None}, {}, {"max_tokens": 3})
        ]
        assert counts == [255, 16, 3]
        chunks = events((await server.complete(max_tokens=None, stream=True)).text)
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"

    run(scenario, lambda request: [40] * 1000)


def test_max_completion_tokens_wins(run):
    async def scenario(server: Server) -> None:
        answer = (await server.chat(max_tokens=9, max_completion_tokens=4)).json()
        assert answer["usage"]["completion_tokens"] == 4

    run(scenario, lambda request: [40] * 1000)


def test_h04_ids_of_requests_are_made_here(run, says):
    async def scenario(server: Server) -> None:
        answers = await asyncio.gather(*(server.complete(request_id="same") for _ in range(2)))
        assert len({answer.json()["id"] for answer in answers}) == 2
        assert len({request.request_id for request in server.engine.seen}) == 2

    run(scenario, says("x"))


# ---- refusals


REFUSED = [
    ("A05", COMPLETIONS, {"prompt": [-1]}, "prompt"),
    ("A06", COMPLETIONS, {"prompt": [VOCAB_SIZE]}, "prompt"),
    ("A06", COMPLETIONS, {"prompt": [5279552648203111001]}, "prompt"),
    ("A07", COMPLETIONS, {"prompt": ""}, "prompt"),
    ("A07", COMPLETIONS, {"prompt": [""]}, "prompt"),
    ("A07", COMPLETIONS, {"prompt": []}, "prompt"),
    ("A07", COMPLETIONS, {"prompt": [[]]}, "prompt"),
    ("A08", CHAT, {"messages": []}, "messages"),
    *[
        (case, path, fields, param)
        for path in (CHAT, COMPLETIONS)
        for case, fields, param in [
            ("A10", {"top_p": 0}, "top_p"),
            ("A10", {"top_p": 1.5}, "top_p"),
            ("A10", {"min_p": 2}, "min_p"),
            ("A10", {"frequency_penalty": 100}, "frequency_penalty"),
            ("A10", {"temperature": 5}, "temperature"),
            ("A10", {"temperature": -1}, "temperature"),
            ("A10", {"temperature": 2**2000}, "temperature"),
            ("A12", {"seed": 2**63}, "seed"),
            ("A12", {"seed": 2**64}, "seed"),
            ("A12", {"seed": -(2**63) - 1}, "seed"),
            ("A13", {"n": 1_000_000_000}, "n"),
            ("A16", {"max_tokens": 0}, "max_tokens"),
            ("A17", {"max_tokens": -1}, "max_tokens"),
            ("A26", {"stop": [""]}, "stop"),
            ("A26", {"stop": ["", "x"]}, "stop"),
            ("A26", {"stop": ""}, "stop"),
            ("A01", {"logit_bias": {str(VOCAB_SIZE + 10): 5}}, "logit_bias"),
            ("type", {"n": "2"}, "n"),
            ("type", {"max_tokens": 1.5}, "max_tokens"),
            ("type", {"stop": [1]}, "stop[0]"),
            ("type", {"stream": "yes"}, "stream"),
            ("type", {"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids"),
            ("unsupported", {"response_format": {"type": "json_object"}}, "response_format"),
            ("A02", {"logit_bias": {"AI": -100}}, "logit_bias"),
            ("A02", {"logit_bias": {"-1": 5}}, "logit_bias"),
            ("A02", {"logit_bias": {"99999999999999999999": 5}}, "logit_bias"),
            ("bias", {"logit_bias": {"5": 101}}, "logit_bias"),
            ("A04", {"stop_token_ids": [VOCAB_SIZE + 5], "min_tokens": 1}, "stop_token_ids"),
            ("A10", {"presence_penalty": -2.1}, "presence_penalty"),
            ("A10", {"repetition_penalty": 0}, "repetition_penalty"),
            ("A18", {"min_tokens": 20, "max_tokens": 5}, "min_tokens"),
            ("ids", {"allowed_token_ids": []}, "allowed_token_ids"),
            ("words", {"bad_words": [" "]}, "bad_words"),
            ("words", {"bad_words": ["x" * 257]}, "bad_words"),
            ("ids", {"allowed_token_ids": [VOCAB_SIZE]}, "allowed_token_ids"),
            ("A29", {"prompt_logprobs": -1}, "prompt_logprobs"),
        ]
    ],
    ("A29", COMPLETIONS, {"logprobs": -1}, "logprobs"),
    ("A29", COMPLETIONS, {"logprobs": 21}, "logprobs"),
    ("A29", CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ("A29", CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ("A29", CHAT, {"top_logprobs": 1}, "top_logprobs"),
    ("A16", CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
    ("A32", CHAT, {"tools": [], "tool_choice": "required"}, "tool_choice"),
    ("A32", CHAT, {"tools": [{"type": "function"}]}, "tools"),
    ("best_of", COMPLETIONS, {"best_of": 2}, "best_of"),
    ("A29", CHAT, {"prompt_logprobs": 21}, "prompt_logprobs"),
    ("A29", COMPLETIONS, {"prompt_logprobs": 21}, "prompt_logprobs"),
    ("A29", COMPLETIONS, {"echo": True, "logprobs": 21}, "logprobs"),
    ("A16", COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
    ("echo", CHAT, {"echo": True}, "echo"),
    ("suffix", COMPLETIONS, {"suffix": "x"}, "suffix"),
    ("type", COMPLETIONS, {"prompt": ["x", [1]]}, "prompt"),
    ("type", COMPLETIONS, {"prompt": [{}]}, "prompt"),
    ("type", COMPLETIONS, {"prompt": 5}, "prompt"),
    ("limit", COMPLETIONS, {"prompt": ["x"] * 1025}, "prompt"),
    ("limit", COMPLETIONS, {"prompt": ["x"] * 32, "n": 64}, "prompt"),
    ("type", CHAT, {"messages": "Hi"}, "messages"),
    ("type", CHAT, {"messages": ["Hi"]}, "messages[0]"),
    ("role", CHAT, {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("case", "path", "fields", "param"), REFUSED)
def test_a_wrong_request_is_refused_before_anything_is_sent(run, case, path, fields, param, stream):
    async def scenario(server: Server) -> None:
        response = await server.client.post(path, json={**BASE[path], "stream": stream, **fields})
        error = response.json()["error"]
        assert response.status_code == 400
        assert response.headers["content-type"] == "application/json"
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param or (param is None and error["param"] in fields)
        assert len(response.content) < 500
        assert not server.engine.seen

    run(scenario)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a23_a24_a_prompt_longer_than_the_context_is_an_http_error_with_both_sizes(run, path, stream):
    async def scenario(server: Server) -> None:
        long = "word " * 512
        body = {"prompt": long, "messages": [{"role": "user", "content": long}], "stream": stream}
        response = await server.client.post(path, json=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "256" in error["message"]
        assert ("513" if path == COMPLETIONS else "543") in error["message"]

    run(scenario)


BROKEN_BODIES = [
    b"", b"{", b"null", b"[]", b'"x"', b"5", b"\xff\xfe", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}',
    b'{"temperature": NaN}', b'{"top_p": Infinity}', b'{"top_p": -Infinity}', b'{"temperature": 1e999}',
    b'{"seed": 1' + b"0" * 5000 + b"}", b"[" * 100_000, b'{"prompt":' * 50_000, b'{"prompt": "x"} trailing',
]  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("body", BROKEN_BODIES, ids=range(len(BROKEN_BODIES)))
def test_a09_f04_a_body_that_is_no_json_object_is_refused(run, path, body):
    async def scenario(server: Server) -> None:
        response = await server.client.post(path, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith("The body ")

    run(scenario)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_of_another_type_is_refused(run, content_type):
    async def scenario(server: Server) -> None:
        response = await server.client.post(CHAT, content=b"{}", headers={"content-type": content_type})
        assert response.status_code == 400
        assert "Content-Type: application/json" in response.json()["error"]["message"]

    run(scenario)


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_large_is_refused_before_it_is_read(run, config, declared):
    sent = 0

    async def body():
        nonlocal sent
        while sent < 2 * config.limits.max_body_bytes:
            sent += 2**20
            yield b"x" * 2**20

    async def scenario(server: Server) -> None:
        headers = {"content-type": "application/json"}
        if declared:
            headers["content-length"] = str(2 * config.limits.max_body_bytes)
        response = await server.client.post(CHAT, content=body(), headers=headers)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"
        assert sent <= (0 if declared else config.limits.max_body_bytes + 2**20)

    run(scenario)


def test_a22_routing_errors_have_the_same_shape(run):
    async def scenario(server: Server) -> None:
        for method, path, status, code in (
            ("GET", "/v2/nothing", 404, "not_found"),
            ("GET", "/v1/", 404, "not_found"),
            ("GET", CHAT, 405, "method_not_allowed"),
            ("DELETE", "/health", 405, "method_not_allowed"),
        ):
            response = await server.client.request(method, path)
            assert response.status_code == status
            error = response.json()["error"]
            assert (error["code"], error["type"], error["param"]) == (code, "invalid_request_error", None)
        assert (await server.client.get(CHAT)).headers["allow"] == "POST"

    run(scenario)


def test_options_of_a_stream_need_one(run):
    async def scenario(server: Server) -> None:
        response = await server.chat(stream_options={"include_usage": True})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "stream_options"

    run(scenario)


def test_a_model_that_is_not_here_is_not_found(run, says):
    async def scenario(server: Server) -> None:
        response = await server.chat(model="gpt-9")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"
        assert response.json()["error"]["param"] == "model"
        assert (await server.chat(model="demo")).status_code == 200
        assert (await server.chat(model=None)).status_code == 200

    run(scenario, says("x"))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"tools": [], "tool_choice": "auto"}),
        (CHAT, {"tool_choice": "none"}),  # A33
        (CHAT, {"logprobs": False, "top_logprobs": 0, "functions": [], "modalities": ["text"]}),
        (CHAT, {"user": "u", "store": True, "metadata": {}, "parallel_tool_calls": True, "whatever": [1]}),
        (COMPLETIONS, {"suffix": None, "echo": False, "best_of": 1, "logprobs": None}),
        (COMPLETIONS, {"presence_penalty": 0.0, "frequency_penalty": 0, "logit_bias": {}, "n": None, "stop": None}),
        (COMPLETIONS, {"response_format": {"type": "text"}, "seed": None, "temperature": None, "stream": None}),
        (COMPLETIONS, {"stop": [], "stop_token_ids": []}),
    ],
)
def test_a33_fields_that_ask_for_nothing_are_taken(run, says, path, fields):
    async def scenario(server: Server) -> None:
        assert (await server.client.post(path, json={**BASE[path], **fields})).status_code == 200

    run(scenario, says("x"))


def test_a_misspelt_field_is_named_in_the_log(run, says, caplog):
    async def scenario(server: Server) -> None:
        with caplog.at_level(logging.WARNING, logger="headrace"):
            assert (await server.complete(temprature=0, max_token=3, user="x", unrelated=1)).status_code == 200
        logged = " ".join(record.getMessage() for record in caplog.records)
        assert "'temprature'" in logged
        assert "'max_token'" in logged
        assert "unrelated" not in logged

    run(scenario, says("x"))


@pytest.mark.parametrize(
    ("a", "b", "near"),
    [("seeed", "seed", True), ("sed", "seed", True), ("sead", "seed", True), ("sede", "seed", True),
     ("seed", "seed", False), ("seat", "seed", False), ("s", "seed", False), ("deed", "seed", True)],
)  # fmt: skip
def test_one_edit_away(a, b, near):
    assert is_one_edit_away(a, b) is near


# ---- faults of ours


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_of_the_engine_is_an_http_error(run, stream):
    async def scenario(server: Server) -> None:
        server.engine.holds = lambda request: True
        task = asyncio.ensure_future(server.chat(stream=stream))
        await server.engine.until(lambda engine: bool(engine.requests))
        (request_id,) = server.engine.requests
        error = {"error_code": "kv_capacity_exceeded", "error_message": "Needs 9 blocks of 8."}
        server.engine.send(EngineCoreOutput(request_id, 0, [], FinishReason.ERROR, **error))
        response = await task
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "kv_capacity_exceeded"
        assert response.json()["error"]["message"] == "Needs 9 blocks of 8."

    run(scenario)


def test_b10_an_error_in_mid_stream_is_one_event_and_no_end(run):
    async def scenario(server: Server) -> None:
        server.engine.holds = lambda request: True
        task = asyncio.ensure_future(server.chat(stream=True))
        await server.engine.until(lambda engine: bool(engine.requests))
        (request_id,) = server.engine.requests
        server.engine.send(EngineCoreOutput(request_id, 0, [19556]))
        server.engine.send(EngineCoreOutput(request_id, 1, [], FinishReason.ERROR))
        blocks = (await task).text.strip().split("\n\n")
        assert "[DONE]" not in blocks[-1]
        assert json.loads(blocks[-1].removeprefix("data: "))["error"]["type"] == "server_error"
        assert all('"finish_reason":null' in block for block in blocks[:-1])

    run(scenario)


def test_a_fault_of_ours_tells_the_client_nothing(run, monkeypatch, caplog):
    async def scenario(server: Server) -> None:
        monkeypatch.setattr(server.llm, "prepare", None)
        response = await server.chat()
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        assert "NoneType" not in response.text
        assert any("NoneType" in (record.exc_text or "") for record in caplog.records)

    run(scenario)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_defaults_of_the_model_are_for_requests_that_do_not_say(config, input_processor, tokenizer, path):
    async def scenario(server: Server) -> None:
        for fields in ({}, {"temperature": 1.5, "top_k": None}):
            await server.client.post(path, json={**BASE[path], **fields})
        plain, said = (request.sampling_params for request in server.engine.seen)
        assert (plain.temperature, plain.top_k, plain.top_p) == (0.25, 7, 1.0)
        assert (said.temperature, said.top_k) == (1.5, 7)

    settings = resolve(EngineConfig(max_model_len=256, override_generation_config='{"temperature": 0.25, "top_k": 7}'))
    run_scenario(settings, input_processor, scenario, script_of(tokenizer, ["there"]))
