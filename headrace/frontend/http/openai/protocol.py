"""Bodies of the OpenAI API, as msgspec Structs: what a client may send and what it gets. Source: platform.openai.com
API reference, with vLLM's extra sampling parameters.

Fields of a request that the API knows and this version does not implement are in `unsupported.py`. A null means the
same as an absent field, except for `max_tokens` of completions.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.frontend.logprobs import RankedToken


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ModelRequest(msgspec.Struct, kw_only=True):
    """What every route has whose body is about a model."""

    model: str | None = None


class GenerationRequest(ModelRequest, kw_only=True):
    """What both routes have. Bounds of numbers are `SamplingParams.check`'s business."""

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
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None  # token id, as JSON's keys are, a string -> what is added to its logit
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    return_tokens_as_token_ids: bool | None = None  # in logprobs: "token_id:17" and not its text
    prompt_logprobs: int | None = None  # most probable tokens at each place of the prompt; not in streams
    priority: int | None = None  # lower goes first
    cache_salt: str | None = None  # requests share cached prefixes only within the same salt


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None  # the newer name; it wins where both are given
    logprobs: bool | None = None
    top_logprobs: int | None = None  # most probable tokens at each place; needs `logprobs`
    add_generation_prompt: bool | None = None  # by default true, unless the last message is continued
    continue_final_message: bool | None = None  # the answer goes on with the last message, the assistant's
    chat_template_kwargs: dict[str, Any] | None = None  # switches of the template


class CompletionRequest(GenerationRequest, kw_only=True):
    prompt: str | list[Any]  # a text, a list of texts, token ids, or a list of lists of token ids
    max_tokens: int | None = 16  # OpenAI's default; null: what the context leaves
    best_of: int | None = None  # only as another way to say `n`
    logprobs: int | None = None  # most probable tokens at each place; 0: the sampled ones' logprobs alone
    echo: bool | None = None  # the text begins with the prompt; with `logprobs`, these too


PromptLogprobs = list[dict[int, RankedToken] | None]  # by token id, for each token of the prompt; null for the first


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int  # of the prompt, those that the prefix cache had


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


# ---- chat -----------------------------------------------------------------------------------------------------------


class TopLogprob(msgspec.Struct):
    token: str  # bytes that are no text on their own as U+FFFD: `bytes` has them all
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """One entry for each token that `usage` counts, the one that ended the answer included."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class ChatMessage(msgspec.Struct):
    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatCompletion(msgspec.Struct):
    id: str
    object: Literal["chat.completion"]
    created: int  # seconds since 1970
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET  # there if they were asked for


class ChatDelta(msgspec.Struct, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
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


class CompletionLogprobs(msgspec.Struct):
    """Lists with one entry for each token. `top_logprobs` has the sampled token too, whatever its rank."""

    text_offset: list[int]  # characters of the choice's text before this token
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET  # there if they were asked for


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
