"""POST /tokenize and /detokenize, with vLLM's bodies: what a text or a conversation is to the model, and back."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.config.resolved import HeadraceConfig
from headrace.errors import InvalidParameterError
from headrace.frontend.async_llm import AsyncLLM
from headrace.frontend.chat_prompt import ChatPrompt
from headrace.frontend.http.connection import BodyReader
from headrace.frontend.http.openai.protocol import ModelRequest
from headrace.frontend.http.openai.request_body import parse_body
from headrace.frontend.http.openai.unsupported import DETOKENIZE, TOKENIZE


class TokenizeRequest(ModelRequest, kw_only=True):
    """Either a text or messages. The fields of one are refused with the other."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None  # by default true for a text; a chat template prints them all itself
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class Tokenized(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None  # tokens as the vocabulary writes them


class DetokenizeRequest(ModelRequest, kw_only=True):
    tokens: list[Any]


class Detokenized(msgspec.Struct):
    prompt: str


class Tokenization:
    def __init__(self, llm: AsyncLLM, config: HeadraceConfig, bodies: BodyReader) -> None:
        self._llm = llm
        self._bodies = bodies
        self._models = config.model.served_model_names
        self._limits = config.limits

    async def tokenize(self, request: Request) -> Response:
        body = await self._bodies.read_json(request)
        asked = await parse_body(body, TokenizeRequest, TOKENIZE, self._models)
        tokens = await self._llm.tokenize(_prompt(asked), add_special_tokens=asked.add_special_tokens is not False)
        texts = await self._llm.token_texts(tokens) if asked.return_token_strs else None
        return _json(Tokenized(len(tokens), self._limits.max_model_len, tokens, texts))

    async def detokenize(self, request: Request) -> Response:
        body = await self._bodies.read_json(request)
        asked = await parse_body(body, DetokenizeRequest, DETOKENIZE, self._models)
        return _json(Detokenized(await self._llm.detokenize(asked.tokens)))


def _prompt(asked: TokenizeRequest) -> str | ChatPrompt:
    if (asked.prompt is None) == (asked.messages is None):
        raise InvalidParameterError("Either prompt or messages is required, and not both.", param="prompt")
    if asked.prompt is not None:
        for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
            if getattr(asked, name):
                raise InvalidParameterError(f"{name} is for messages only.", param=name)
        return asked.prompt
    if asked.add_special_tokens:
        raise InvalidParameterError(
            "add_special_tokens is not supported with messages: the template prints every special token itself.",
            param="add_special_tokens",
        )
    return ChatPrompt(
        asked.messages or [],
        asked.add_generation_prompt,
        bool(asked.continue_final_message),
        asked.chat_template_kwargs or {},
    )


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
