"""The demo model's tokenizer, a small configuration, and servers over a fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.config.resolved import HeadraceConfig
from headrace.frontend.async_llm import AsyncLLM
from headrace.frontend.http.app import build_app
from headrace.frontend.input_processor import InputProcessor
from headrace.frontend.tokenizer.tokenizer import Tokenizer
from tests.unit.frontend.fake_engine import FakeEngine, Script

MAX_MODEL_LEN = 256
EOS = 2  # <|im_end|>


@pytest.fixture(scope="session")
def config() -> HeadraceConfig:
    return resolve(EngineConfig(max_model_len=MAX_MODEL_LEN, served_model_name="demo"))


@pytest.fixture(scope="session")
def input_processor(config: HeadraceConfig) -> InputProcessor:
    return InputProcessor.from_config(config)


@pytest.fixture(scope="session")
def tokenizer(input_processor: InputProcessor) -> Tokenizer:
    return input_processor.tokenizer


class Server:
    """An application over a fake engine, and a client for it."""

    def __init__(self, config: HeadraceConfig, input_processor: InputProcessor, engine: FakeEngine) -> None:
        self.engine = engine
        self.llm = AsyncLLM(config, engine, input_processor=input_processor)
        self.app = build_app(self.llm, config)
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False), base_url="http://server"
        )

    async def chat(self, **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
        return await self.client.post("/v1/chat/completions", json=body)

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"prompt": "Hi", **fields})


Scenario = Callable[[Server], Awaitable[None]]


@pytest.fixture
def run(config: HeadraceConfig, input_processor: InputProcessor) -> Callable[..., None]:
    """Runs an async scenario with a server of its own: `run(scenario, script)`. Afterwards nothing may be under way."""

    @asynccontextmanager
    async def serving(script: Script, is_ready: bool) -> AsyncIterator[Server]:
        server = Server(config, input_processor, FakeEngine(script, is_ready=is_ready))
        try:
            yield server
            await asyncio.wait_for(server.llm.wait_until_idle(), 5)
        finally:
            await server.client.aclose()
            server.llm.shutdown()

    def run(scenario: Scenario, script: Script = lambda request: (), *, is_ready: bool = True) -> None:
        async def main() -> None:
            async with serving(script, is_ready) as server:
                await scenario(server)

        asyncio.run(asyncio.wait_for(main(), 20))

    return run


@pytest.fixture
def says(tokenizer: Tokenizer) -> Callable[..., Script]:
    """`says("a text")`: a script that generates this text and then ends. `says("one", "two")` gives each request the
    text of its turn."""

    def says(*texts: str, end: Sequence[int] = (EOS,)) -> Script:
        turn = iter(range(10**6))
        scripts = [[*tokenizer.encode(text, add_special_tokens=False), *end] for text in texts]
        return lambda request: scripts[next(turn) % len(scripts)]

    return says
