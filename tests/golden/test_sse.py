"""Streams, byte for byte, against the transcripts in data/sse; and what the official OpenAI client reads out of them.

Ids and times are put to fixed values; all else is as it left the server. To write the transcripts anew, and then read
the difference with care: `python -m tests.golden.test_sse`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import openai
import pytest

from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.config.resolved import HeadraceConfig
from headrace.frontend.input_processor import InputProcessor
from tests.unit.frontend.serving import Server, run_scenario, script_of

TRANSCRIPTS = Path(__file__).with_name("data") / "sse"
TEXT = "I see ď🔥漢 here.\n\nThe end"
HI = [{"role": "user", "content": "Hi"}]
NOT_OF_OPENAI = ("skip_special_tokens", "include_stop_str_in_output", "stop_token_ids", "return_tokens_as_token_ids")
USAGE = {"stream_options": {"include_usage": True}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat/completions", {"messages": HI}),
    "chat_usage": ("chat/completions", {"messages": HI, **USAGE}),
    "chat_no_usage": ("chat/completions", {"messages": HI, "stream_options": {"include_usage": False}}),
    "chat_n2": ("chat/completions", {"messages": HI, "n": 2, "max_tokens": 2}),
    "chat_n2_usage": ("chat/completions", {"messages": HI, "n": 2, "max_completion_tokens": 2, **USAGE}),
    "chat_length": ("chat/completions", {"messages": HI, "max_tokens": 3}),
    "chat_cut_character": ("chat/completions", {"messages": HI, "max_tokens": 9}),
    "chat_stop": ("chat/completions", {"messages": HI, "stop": "here"}),
    "chat_stop_kept": ("chat/completions", {"messages": HI, "stop": ["here"], "include_stop_str_in_output": True}),
    "chat_stop_at_once": ("chat/completions", {"messages": HI, "stop": ["I"]}),
    "chat_special": ("chat/completions", {"messages": HI, "stop": ["xyz"], "skip_special_tokens": False}),
    "completion": ("completions", {"prompt": "Hi", "max_tokens": None}),
    "completion_usage": ("completions", {"prompt": "Hi", "max_tokens": None, **USAGE}),
    "completion_length": ("completions", {"prompt": "Hi", "max_tokens": 4}),
    "completion_prompts": ("completions", {"prompt": ["Hi", "Ho"], "max_tokens": 1, **USAGE}),
    "completion_stop_withheld": ("completions", {"prompt": "Hi", "max_tokens": 14, "stop": ["\n\nThe beginning"]}),
    "chat_logprobs": ("chat/completions", {"messages": HI, "logprobs": True}),
    "chat_logprobs_top": ("chat/completions", {"messages": HI, "logprobs": True, "top_logprobs": 2, "max_tokens": 9}),
    "chat_logprobs_stop": ("chat/completions", {"messages": HI, "logprobs": True, "stop": "here"}),
    "chat_logprobs_n2_usage": (
        "chat/completions",
        {"messages": HI, "logprobs": True, "n": 2, "max_tokens": 1, **USAGE},
    ),
    "chat_logprobs_ids": (
        "chat/completions",
        {"messages": HI, "logprobs": True, "max_tokens": 2, "return_tokens_as_token_ids": True},
    ),
    "chat_stop_token": ("chat/completions", {"messages": HI, "stop_token_ids": [338], "logprobs": True}),
    "chat_sampled": ("chat/completions", {"messages": HI, "seed": 7, "temperature": 0.5, "max_tokens": 4}),
    "completion_logprobs": ("completions", {"prompt": "Hi", "max_tokens": 9, "logprobs": 0}),
    "completion_logprobs_top": ("completions", {"prompt": "Hi", "max_tokens": None, "logprobs": 3, **USAGE}),
    "completion_logprobs_prompts": ("completions", {"prompt": ["Hi", "Ho"], "max_tokens": 1, "logprobs": 1}),
    "completion_token_ids": ("completions", {"prompt": [26843], "max_tokens": 2}),
    "completion_n3": ("completions", {"prompt": "Hi", "n": 3, "max_tokens": 1, **USAGE}),
    "completion_stop_at_end": ("completions", {"prompt": "Hi", "max_tokens": None, "stop": ["end"]}),
    "completion_special": ("completions", {"prompt": "Hi", "max_tokens": None, "skip_special_tokens": False}),
}


@pytest.fixture(scope="module")
def config() -> HeadraceConfig:
    return resolve(EngineConfig(max_model_len=256, served_model_name=("demo",)))


@pytest.fixture(scope="module")
def input_processor(config: HeadraceConfig) -> InputProcessor:
    return InputProcessor.from_config(config)


def record(config: HeadraceConfig, input_processor: InputProcessor, path: str, body: dict[str, Any]) -> bytes:
    """The bytes of one stream, each token of it in an event of its own."""
    transcript = b""

    async def scenario(server: Server) -> None:
        nonlocal transcript
        server.engine.pace = 50
        response = await server.client.post(f"/v1/{path}", json={**body, "stream": True})
        transcript = re.sub(rb'("id":"[a-z]+-)[0-9a-f]{20}', rb"\g<1>ID", response.content)
        transcript = re.sub(rb'"created":\d+', b'"created":0', transcript)

    run_scenario(config, input_processor, scenario, script_of(input_processor.tokenizer, [TEXT]))
    return transcript


@pytest.mark.parametrize("name", CASES)
def test_streams_are_what_they_were(config, input_processor, name):
    assert record(config, input_processor, *CASES[name]) == (TRANSCRIPTS / f"{name}.sse").read_bytes()


@pytest.mark.parametrize("name", CASES)
def test_the_official_client_reads_the_same_in_a_stream_and_in_a_whole_answer(config, input_processor, name):
    path, body = CASES[name]
    is_chat = path.startswith("chat")
    body = {**body, "model": "demo"}
    extra = {key: body.pop(key) for key in NOT_OF_OPENAI if key in body}

    async def scenario(server: Server) -> None:
        client = openai.AsyncOpenAI(api_key="none", base_url="http://server/v1", http_client=server.client)
        create = client.chat.completions.create if is_chat else client.completions.create
        stream: Any = await create(**body, extra_body=extra, stream=True)
        texts: dict[int, str] = {}
        reasons: dict[int, str] = {}
        async for chunk in stream:
            for choice in chunk.choices:
                text = (choice.delta.content or "") if is_chat else choice.text
                texts[choice.index] = texts.get(choice.index, "") + text
                if choice.finish_reason is not None:
                    reasons[choice.index] = choice.finish_reason
        body.pop("stream_options", None)
        whole: Any = await create(**body, extra_body=extra)
        assert texts == {c.index: c.message.content if is_chat else c.text for c in whole.choices}
        assert reasons == {c.index: c.finish_reason for c in whole.choices}

    run_scenario(config, input_processor, scenario, script_of(input_processor.tokenizer, [TEXT]))


def main() -> None:
    TRANSCRIPTS.mkdir(parents=True, exist_ok=True)
    settings = resolve(EngineConfig(max_model_len=256, served_model_name=("demo",)))
    processor = InputProcessor.from_config(settings)
    for name, (path, body) in CASES.items():
        (TRANSCRIPTS / f"{name}.sse").write_bytes(record(settings, processor, path, body))


if __name__ == "__main__":
    main()
