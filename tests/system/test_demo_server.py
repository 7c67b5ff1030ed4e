"""The server of the README: the demo model, asked by the official OpenAI client. What it loads, and what it weighs."""

from __future__ import annotations

import re
from pathlib import Path

import openai
import pytest

from tests.system.server import Server

pytestmark = [pytest.mark.system, pytest.mark.slow]

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
MAX_API_RSS_MB = 120


@pytest.fixture(scope="module")
def server():
    # PYTHONVERBOSE: every module that any process imports is named on stderr.
    server = Server(env={"PYTHONVERBOSE": "1"})
    try:
        yield server.wait_ready()
    finally:
        server.close()


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_paris(client):
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (37, 8)


def test_paris_streamed(client):
    model = client.models.list().data[0].id
    chunks = list(
        client.chat.completions.create(
            model=model, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "The capital of France is Paris."
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8


def test_sampling_with_a_seed(client):
    def ask(seed: int) -> list[str]:
        answer = client.completions.create(
            model="", prompt="Once upon a time", max_tokens=12, temperature=0.9, seed=seed, n=2
        )
        return [choice.text for choice in answer.choices]

    assert ask(1) == ask(1)
    assert ask(1) != ask(2)
    assert len(set(ask(1))) == 2


def test_no_process_knows_torch_or_transformers(server):
    # Not only at the beginning of a line: two threads that import at the same time may share one.
    imported = set(re.findall(r"import '([\w.]+)' #", server.stderr))
    assert {"headrace.launch", "headrace.core.engine_core", "headrace.frontend.async_llm", "numpy"} <= imported
    assert not {name for name in imported if name.partition(".")[0] in ("torch", "transformers")}
    for pid in server.processes().values():
        mapped = Path(f"/proc/{pid}/maps").read_text()
        assert "torch" not in mapped
        assert "transformers" not in mapped


def test_the_api_process_is_small(server):
    status = Path(f"/proc/{server.processes()['headrace-api-0']}/status").read_text()
    rss_mb = int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024
    assert rss_mb < MAX_API_RSS_MB
