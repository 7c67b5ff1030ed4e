"""POST /tokenize and /detokenize."""

from __future__ import annotations

import threading

import pytest

from tests.unit.frontend.serving import MAX_MODEL_LEN, Server

VOCAB_SIZE = 49152
HELLO = [{"role": "user", "content": "Hello"}]


def test_a_text_is_tokenized_as_completions_do_it(run):
    async def scenario(server: Server) -> None:
        response = await server.client.post("/tokenize", json={"model": "demo", "prompt": "Hello there"})
        assert response.json() == {
            "count": 2, "max_model_len": MAX_MODEL_LEN, "tokens": [19556, 665], "token_strs": None
        }  # fmt: skip
        response = await server.client.post("/tokenize", json={"prompt": "Hello there", "return_token_strs": True})
        assert response.json()["token_strs"] == ["Hello", "Ġthere"]
        response = await server.client.post("/tokenize", json={"prompt": "<|im_end|>"})
        assert response.json()["tokens"] == [2]  # a prompt is the caller's own protocol

    run(scenario)


def test_a_conversation_is_tokenized_as_chats_do_it(run, says):
    async def scenario(server: Server) -> None:
        for fields in (
            {},
            {"add_generation_prompt": False},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"messages": [*HELLO, {"role": "assistant", "content": "He"}], "continue_final_message": True},
        ):
            body = {"messages": HELLO, **fields}
            assert (await server.chat(**body)).status_code == 200
            tokens = (await server.client.post("/tokenize", json=body)).json()["tokens"]
            assert tokens == server.engine.seen[-1].prompt_token_ids

    run(scenario, says("Hi"))


def test_a_text_longer_than_the_context_is_counted(run):
    async def scenario(server: Server) -> None:
        response = await server.client.post("/tokenize", json={"prompt": "word " * 1000})
        assert response.json()["count"] > MAX_MODEL_LEN
        response = await server.client.post("/tokenize", json={"prompt": ""})
        assert response.json()["tokens"] == []

    run(scenario)


def test_tokens_become_text_again(run):
    async def scenario(server: Server) -> None:
        text = "<|im_start|>user\nHéllo 漢 🔥<|im_end|>"
        tokens = (await server.client.post("/tokenize", json={"prompt": text})).json()["tokens"]
        response = await server.client.post("/detokenize", json={"model": "demo", "tokens": tokens})
        assert response.json() == {"prompt": text}
        assert (await server.client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}

    run(scenario)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "messages": HELLO}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["x"]}, "prompt"),
        ({"prompt": "x", "add_special_tokens": "yes"}, "add_special_tokens"),
        ({"prompt": "x", "continue_final_message": True}, "continue_final_message"),
        ({"prompt": "x", "chat_template_kwargs": {"thinking": True}}, "chat_template_kwargs"),
        ({"prompt": "x" * 100_000}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 100_000}]}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ],
)
def test_a08_what_cannot_be_tokenized_is_refused(run, fields, param):
    async def scenario(server: Server) -> None:
        response = await server.client.post("/tokenize", json=fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param

    run(scenario)


@pytest.mark.parametrize(
    "tokens", [None, "x", [-1], [VOCAB_SIZE], [2**40], [10**30], ["5"], [True], [1.5], [[1]], [5] * (MAX_MODEL_LEN + 1)]
)
def test_a05_a06_tokens_that_there_are_not_are_refused(run, tokens):
    async def scenario(server: Server) -> None:
        response = await server.client.post("/detokenize", json={"tokens": tokens})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tokens"
        assert len(response.content) < 300

    run(scenario)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_another_model_and_another_method_are_refused(run, path):
    async def scenario(server: Server) -> None:
        body = {"model": "other", "prompt": "x", "tokens": [1]}
        assert (await server.client.post(path, json=body)).status_code == 404
        assert (await server.client.get(path)).status_code == 405

    run(scenario)


def test_the_routes_are_described(run):
    async def scenario(server: Server) -> None:
        paths = (await server.client.get("/openapi.json")).json()["paths"]
        for path in ("/tokenize", "/detokenize"):
            assert list(paths[path]["post"]["responses"]["200"]["content"]) == ["application/json"]

    run(scenario)


def test_h11_the_work_is_done_in_the_input_threads(run, input_processor, monkeypatch):
    threads = []

    def recording(name: str):
        work = getattr(input_processor, name)

        def record(*args: object, **kwargs: object) -> object:
            threads.append(threading.current_thread().name)
            return work(*args, **kwargs)

        return record

    async def scenario(server: Server) -> None:
        for name in ("tokenize", "detokenize"):
            monkeypatch.setattr(input_processor, name, recording(name))
        await server.client.post("/tokenize", json={"messages": HELLO})
        await server.client.post("/detokenize", json={"tokens": [1]})
        assert [name.startswith("headrace-input") for name in threads] == [True, True]

    run(scenario)
