"""From the bytes of a body to a typed request, and from that to `SamplingParams`."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from headrace.config.limits import MAX_LOGIT_BIAS
from headrace.contracts.sampling_params import OutputKind, SamplingParams, check_count
from headrace.errors import InvalidParameterError, ModelNotFoundError
from headrace.frontend.async_llm import AsyncLLM
from headrace.frontend.http.openai.protocol import (
    GenerationRequest,
    ModelRequest,
    PromptLogprobs,
    PromptTokensDetails,
    Usage,
)
from headrace.frontend.http.openai.unsupported import Neutral, refuse_unsupported, warn_of_misspelt
from headrace.frontend.input_processor import Scheduling
from headrace.frontend.logprobs import LogprobsReader
from headrace.frontend.request_output import RequestOutput
from headrace.frontend.tokenizer.tokenizer import Tokenizer

M = TypeVar("M", bound=ModelRequest)
R = TypeVar("R", bound=GenerationRequest)

MAX_BYTES_AT_ONCE = (
    2**16
)  # of a body that the event loop itself reads, in a millisecond or less; larger ones have a thread
MAX_LOGPROBS_AT_ONCE = 64  # tokens whose logprobs the event loop itself writes out, with 20 others for each
MAX_PARTS = 2**17  # lists, objects and keys in a body; 4,096 messages have some 20,000
MAX_NESTING = 128  # lists and objects around a value; a tool's JSON schema has some twenty

_SAMPLING_FIELDS = (
    "n", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "skip_special_tokens",
    "include_stop_str_in_output", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip
_ERROR_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*?)`)?$", re.DOTALL)
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_TOKEN_ID = re.compile(r"[0-9]{1,10}")
_MISSING_FIELD = re.compile(r"missing required field `(\w+)`")


async def parse_request(body: bytes | bytearray, kind: type[R], neutral: Neutral, models: Collection[str]) -> R:
    """`parse_body` for a request that asks for an answer."""
    request = await parse_body(body, kind, neutral, models)
    if request.stream_options is not None and not request.stream:
        raise InvalidParameterError("stream_options is only allowed with stream.", param="stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise InvalidParameterError("prompt_logprobs is not available with stream.", param="prompt_logprobs")
    return request


async def parse_body(body: bytes | bytearray, kind: type[M], neutral: Neutral, models: Collection[str]) -> M:
    """Raises `InvalidParameterError` with the path of the first field that is wrong, or `ModelNotFoundError`.

    NaN, Infinity and numbers that no float holds are no JSON and are refused like any other malformed body."""
    if len(body) <= MAX_BYTES_AT_ONCE:
        return _parse(body, kind, neutral, models)
    return await asyncio.to_thread(_parse, body, kind, neutral, models)


def _parse(body: bytes | bytearray, kind: type[M], neutral: Neutral, models: Collection[str]) -> M:
    fields = _decode(body)
    refuse_unsupported(fields, neutral)
    warn_of_misspelt(fields, kind.__struct_fields__, neutral)
    try:
        request = _convert(fields, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise _invalid_field(str(error)) from None
    if request.model and request.model not in models:
        raise ModelNotFoundError("There is no such model here; GET /v1/models lists what there is.", param="model")
    return request


def _convert(fields: dict[str, object], kind: type[M]) -> M:
    """16.0 is an integer to JSON Schema, and some languages write one so; to msgspec it is none."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
    return msgspec.convert({name: _whole_numbers(value) for name, value in fields.items()}, kind)


def _whole_numbers(value: object) -> object:
    if isinstance(value, list):
        return [int(entry) if isinstance(entry, float) and entry.is_integer() else entry for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def sampling_params_of(
    request: GenerationRequest, defaults: Mapping[str, int | float], max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """Fields that are absent or null get these defaults, or `SamplingParams`'. Not checked yet.

    Raises `InvalidParameterError` for keys of `logit_bias` that are no token ids."""
    given = {name: value for name in _SAMPLING_FIELDS if (value := getattr(request, name)) is not None}
    stop = () if request.stop is None else request.stop
    return SamplingParams(
        **{**defaults, **given},
        max_tokens=max_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        logit_bias=None if request.logit_bias is None else _bias_by_id(request.logit_bias),
        allowed_token_ids=None if request.allowed_token_ids is None else tuple(request.allowed_token_ids),
        bad_words=tuple(request.bad_words or ()),
        logprobs=logprobs,
        prompt_logprobs=request.prompt_logprobs,
        output_kind=OutputKind.DELTA if request.stream else OutputKind.FINAL_ONLY,
    )


def _bias_by_id(logit_bias: dict[str, float]) -> dict[int, float]:
    check_count("logit_bias", logit_bias, MAX_LOGIT_BIAS)  # before the keys are looked at
    if not all(_TOKEN_ID.fullmatch(key) for key in logit_bias):
        raise InvalidParameterError(
            'logit_bias must map token ids, as strings of digits, to numbers, such as {"50": -100}.', param="logit_bias"
        )
    return {int(key): value for key, value in logit_bias.items()}


def scheduling_of(request: GenerationRequest) -> Scheduling:
    return Scheduling(request.priority or 0, request.cache_salt)


def logprobs_reader(tokenizer: Tokenizer, request: GenerationRequest, params: SamplingParams) -> LogprobsReader:
    with_ids = bool(request.return_tokens_as_token_ids)
    return LogprobsReader(tokenizer, skip_special_tokens=params.skip_special_tokens, with_ids=with_ids)


async def read_prompt_logprobs(
    llm: AsyncLLM, reader: LogprobsReader, output: RequestOutput, num_top: int | None
) -> PromptLogprobs | UnsetType:
    """The field of an answer. Nothing where `num_top`, the request's `prompt_logprobs`, is None."""
    if num_top is None or output.prompt_logprobs is None:
        return UNSET
    return await llm.in_thread(reader.prompt_by_id, output.prompt_token_ids, output.prompt_logprobs, num_top)


def has_many_logprobs(output: RequestOutput) -> bool:
    """Whether what clients get of them is too much work for the event loop."""
    num_logprobs = 0
    for choice in output.outputs:  # no generator expression: this is done for each token
        if choice.logprobs:
            num_logprobs += len(choice.logprobs)
    return num_logprobs > MAX_LOGPROBS_AT_ONCE


def usage_of(num_prompt_tokens: int, num_generated: int, num_cached: int) -> Usage:
    return Usage(num_prompt_tokens, num_generated, num_prompt_tokens + num_generated, PromptTokensDetails(num_cached))


def wants_usage(request: GenerationRequest) -> bool:
    """Whether a stream has to end with a chunk of usage."""
    return request.stream_options is not None and bool(request.stream_options.include_usage)


def _decode(body: bytes | bytearray) -> dict[str, object]:
    too_deep = InvalidParameterError(f"The body may be nested at most {MAX_NESTING} deep.")
    _check_number_of_parts(body)
    try:
        fields = _decode_json(body)
    except RecursionError:  # how deep that is depends on the version of Python
        raise too_deep from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidParameterError("The body is not valid JSON.") from None
    if not isinstance(fields, dict):
        raise InvalidParameterError("The body must be a JSON object.")
    if body.count(b"[") + body.count(b"{") > MAX_NESTING and not _is_nested_within(fields, MAX_NESTING):
        raise too_deep
    return fields


def _check_number_of_parts(body: bytes | bytearray) -> None:
    """A million lists in a body take half a second in which nothing else happens, as the decoder keeps the GIL."""
    num_parts = _count_parts(body)
    if num_parts > MAX_PARTS:
        num_parts -= sum(_count_parts(match[0]) for match in _STRING.finditer(body))
    if num_parts > MAX_PARTS:
        raise InvalidParameterError(f"The body may have at most {MAX_PARTS} lists, objects and keys.")


def _count_parts(data: bytes | bytearray) -> int:
    return data.count(b"[") + data.count(b"{") + data.count(b":")


def _decode_json(body: bytes | bytearray) -> object:
    """While a million lists come into being, the garbage collector would go through them over and over in vain."""
    if len(body) <= MAX_BYTES_AT_ONCE:
        return msgspec.json.decode(body)
    gc.disable()
    try:
        return msgspec.json.decode(body)
    finally:
        gc.enable()


def _is_nested_within(fields: dict[str, object], depth: int) -> bool:
    """Whether there are at most `depth` lists and objects around anything in it. Level by level: no recursion."""
    level: list[Any] = [fields]
    for _ in range(depth):
        entries = chain.from_iterable(value.values() if type(value) is dict else value for value in level)
        level = [entry for entry in entries if type(entry) in (list, dict)]
        if not level:
            return True
    return False


def _invalid_field(description: str) -> InvalidParameterError:
    """msgspec's words, "Expected `int | null`, got `str` - at `$.n`", as an error of field `n`."""
    match = _ERROR_PATH.match(description)
    what, path = (match["what"], match["path"]) if match else ("It has a wrong type", None)
    path = path and path.replace("[...]", "")  # some key's value
    missing = _MISSING_FIELD.search(what)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidParameterError(f"{path} is required.", param=path)
    return InvalidParameterError(f"{path}: {what}." if path else f"{what}.", param=path or None)
