"""Servers over a fake engine, reached over ASGI without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx

from headrace.config.resolved import HeadraceConfig
from headrace.frontend.async_llm import AsyncLLM
from headrace.frontend.http.app import build_app
from headrace.frontend.input_processor import InputProcessor
from headrace.frontend.tokenizer.tokenizer import Tokenizer
from tests.unit.frontend.fake_engine import FakeEngine, Script

MAX_MODEL_LEN = 256
EOS = 2  # <|im_end|>


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


def run_scenario(
    config: HeadraceConfig,
    input_processor: InputProcessor,
    scenario: Scenario,
    script: Script,
    *,
    is_ready: bool = True,
) -> None:
    """Run an async scenario with a server of its own. Afterwards nothing may be under way."""

    async def main() -> None:
        server = Server(config, input_processor, FakeEngine(script, is_ready=is_ready))
        try:
            await scenario(server)
            await asyncio.wait_for(server.llm.wait_until_idle(), 5)
        finally:
            await server.client.aclose()
            server.llm.shutdown()

    asyncio.run(asyncio.wait_for(main(), 20))


def script_of(tokenizer: Tokenizer, texts: Sequence[str], end: Sequence[int] = (EOS,)) -> Script:
    """A script that generates these texts, each request the next one, and then ends."""
    turn = iter(range(10**6))
    scripts = [[*tokenizer.encode(text, add_special_tokens=False), *end] for text in texts]
    return lambda request: scripts[next(turn) % len(scripts)]
