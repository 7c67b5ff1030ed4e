"""Bodies of the OpenAI API, as msgspec Structs: what a client may send and what it gets. Source: platform.openai.com
API reference, with vLLM's extra sampling parameters.

Fields of a request that the API knows and this version does not implement are in `unsupported.py`. A null means the
same as an absent field, except for `max_tokens` of completions.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class GenerationRequest(msgspec.Struct, kw_only=True):
    """What both routes have. Bounds of numbers are `SamplingParams.check`'s business."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: int | None = None
    priority: int | None = None  # lower goes first
    cache_salt: str | None = None  # requests share cached prefixes only within the same salt


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None  # the newer name; it wins where both are given


class CompletionRequest(GenerationRequest, kw_only=True):
    prompt: str | list[Any]  # a text, a list of texts, token ids, or a list of lists of token ids
    max_tokens: int | None = 16  # OpenAI's default; null: what the context leaves
    best_of: int | None = None  # only as another way to say `n`


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


# ---- chat -----------------------------------------------------------------------------------------------------------


class ChatMessage(msgspec.Struct):
    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    logprobs: None
    finish_reason: str | None


class ChatCompletion(msgspec.Struct):
    id: str
    object: Literal["chat.completion"]
    created: int  # seconds since 1970
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(msgspec.Struct, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: None
    finish_reason: str | None


class ChatCompletionChunk(msgspec.Struct):
    """One event of a stream. `usage` is there only if it was asked for, and null in all chunks but the last."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET


# ---- completions ----------------------------------------------------------------------------------------------------


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: None
    finish_reason: str | None


class Completion(msgspec.Struct):
    """The whole answer, or one event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


# ---- models ---------------------------------------------------------------------------------------------------------


class ModelCard(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(msgspec.Struct):
    object: Literal["list"]
    data: list[ModelCard]
