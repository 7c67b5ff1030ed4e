"""POST /v1/completions: one or several prompts, each with `n` choices. The choices of prompt `p` are numbered from
`p * n` on."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from headrace.config.limits import Limits
from headrace.config.resolved import HeadraceConfig
from headrace.contracts.sampling_params import SamplingParams
from headrace.errors import InvalidParameterError
from headrace.frontend.async_llm import AsyncLLM
from headrace.frontend.http.connection import BodyReader, until_disconnect
from headrace.frontend.http.merge import merge
from headrace.frontend.http.openai.protocol import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    PromptLogprobs,
    Usage,
)
from headrace.frontend.http.openai.request_body import (
    has_many_logprobs,
    logprobs_reader,
    parse_request,
    read_prompt_logprobs,
    sampling_params_of,
    scheduling_of,
    usage_of,
    wants_usage,
)
from headrace.frontend.http.openai.unsupported import COMPLETIONS
from headrace.frontend.http.sse import DONE, EventStream, event
from headrace.frontend.input_processor import PreparedRequest
from headrace.frontend.logprobs import LogprobsReader, PlaceLogprobs
from headrace.frontend.request_output import CompletionOutput, RequestOutput

Outputs = AsyncGenerator[tuple[int, RequestOutput], None]  # each with the place of its prompt


class Completions:
    """The route. A streamed answer begins when its first token is there: until then an error is an HTTP status."""

    def __init__(self, llm: AsyncLLM, config: HeadraceConfig, bodies: BodyReader) -> None:
        self._llm = llm
        self._bodies = bodies
        self._models = config.model.served_model_names
        self._defaults = config.model.sampling_defaults
        self._limits = config.limits

    async def post(self, request: Request) -> Response:
        body = await self._bodies.read_json(request)
        completion = await parse_request(body, CompletionRequest, COMPLETIONS, self._models)
        params = self._sampling_params(completion)
        scheduling = scheduling_of(completion)
        prompts = _split_prompts(completion.prompt)
        _check_number_of_choices(len(prompts), params, completion.best_of, self._limits)
        prepared = [await self._llm.prepare(prompt, params, scheduling=scheduling) for prompt in prompts]
        _check_number_of_prompt_logprobs(prepared, completion, self._limits)
        reader = logprobs_reader(self._llm.tokenizer, completion, params)
        answer = _Answer(self._llm, prepared, self._models[0], completion, reader)
        outputs = merge([self._llm.generate(one) for one in prepared])
        if completion.stream:
            first = await until_disconnect(request.receive, anext(outputs))
            return EventStream(answer.events(first, outputs, with_usage=wants_usage(completion)))
        whole = await until_disconnect(request.receive, answer.whole(outputs))
        return Response(msgspec.json.encode(whole), media_type="application/json")

    def _sampling_params(self, completion: CompletionRequest) -> SamplingParams:
        """With `echo` there may be no answer to generate; the engine cannot do without, so it gets one token."""
        max_tokens = 1 if _is_echo_alone(completion) else completion.max_tokens
        params = sampling_params_of(completion, self._defaults, max_tokens, completion.logprobs)
        params.check(self._limits)
        if completion.echo and completion.logprobs is not None:
            most = max(completion.logprobs, completion.prompt_logprobs or 0)
            params = msgspec.structs.replace(params, prompt_logprobs=most)
        return params


@dataclass(frozen=True)
class _Prompt:
    """What an answer says of its prompt."""

    echo: str = ""  # what the text of each choice begins with
    echo_logprobs: CompletionLogprobs | None = None
    logprobs: PromptLogprobs | UnsetType = UNSET


class _Answer:
    """One answer in the making: its id, and the shapes that the outputs take."""

    def __init__(
        self,
        llm: AsyncLLM,
        prepared: Sequence[PreparedRequest],
        model: str,
        completion: CompletionRequest,
        logprobs: LogprobsReader,
    ) -> None:
        self._llm = llm
        self._prepared = prepared
        self._echo = bool(completion.echo)
        self._is_echo_alone = _is_echo_alone(completion)
        self._num_top = completion.logprobs
        self._num_top_of_prompt = completion.prompt_logprobs
        self._logprobs = logprobs
        self._id = f"cmpl-{prepared[0].label}"
        self._model = model
        self._created = int(time.time())
        self._n = prepared[0].params.n
        self._num_prompts = len(prepared)
        self._num_prompt_tokens = sum(len(one.prompt_token_ids) for one in prepared)
        self._num_generated = 0
        self._num_cached: dict[int, int] = {}  # by the place of the prompt

    async def whole(self, outputs: Outputs) -> Completion:
        choices: list[CompletionChoice] = []
        async with aclosing(outputs):
            async for place, output in outputs:
                prompt = await self._read_prompt(place, output)
                choices += [_after_prompt(prompt, choice) for choice in await self._read_choices(place, output)]
        choices.sort(key=lambda choice: choice.index)
        return self._completion(choices, self._usage())

    async def events(
        self, first: tuple[int, RequestOutput], later: Outputs, *, with_usage: bool
    ) -> AsyncGenerator[bytes, None]:
        """Pieces of text, the echo of the prompt first, the last of each choice with its finish reason. Then, if asked
        for, one chunk without choices that has the usage. What is there at one time is one string: a packet costs the
        client and us more than an event."""
        usage = None if with_usage else UNSET
        num_open = self._num_prompts
        prompts: dict[int, _Prompt] = {}
        begun: set[int] = set()
        async with aclosing(later):
            place, output = first
            while True:
                events: list[bytes] = []
                if self._echo and place not in prompts:
                    prompts[place] = await self._read_prompt(place, output)
                for choice in await self._read_choices(place, output):
                    if self._echo and choice.index not in begun:
                        begun.add(choice.index)
                        events.append(event(self._completion([_echo_choice(choice.index, prompts[place])], usage)))
                    if choice.text or choice.finish_reason is not None or (choice.logprobs and choice.logprobs.tokens):
                        events.append(event(self._completion([choice], usage)))
                num_open -= output.finished
                if not num_open:
                    break
                if events:
                    yield b"".join(events)
                place, output = await anext(later)
        if with_usage:
            events.append(event(self._completion([], self._usage())))
        yield b"".join([*events, DONE])

    async def _read_prompt(self, place: int, output: RequestOutput) -> _Prompt:
        logprobs = await read_prompt_logprobs(self._llm, self._logprobs, output, self._num_top_of_prompt)
        if not self._echo:
            return _Prompt(logprobs=logprobs)
        echo, echo_logprobs = await self._llm.in_thread(self._read_echo, self._prepared[place].prompt, output)
        for index in range(place * self._n, (place + 1) * self._n):
            self._logprobs.begin_after(index, echo)
        return _Prompt(echo, echo_logprobs, logprobs)

    def _read_echo(self, text: str | None, output: RequestOutput) -> tuple[str, CompletionLogprobs | None]:
        token_ids, found = output.prompt_token_ids, output.prompt_logprobs
        if text is None:
            text = self._logprobs.text_of(token_ids)
        if self._num_top is None or found is None:
            return text, None
        logprobs = _completion_logprobs(self._logprobs.read_prompt(text, token_ids, found, self._num_top))
        logprobs.token_logprobs[0] = logprobs.top_logprobs[0] = None
        return text, logprobs

    async def _read_choices(self, place: int, output: RequestOutput) -> list[CompletionChoice]:
        if has_many_logprobs(output):
            return await self._llm.in_thread(self._choices, place, output)
        return self._choices(place, output)

    def _choices(self, place: int, output: RequestOutput) -> list[CompletionChoice]:
        self._num_cached[place] = output.num_cached_tokens
        first = place * self._n
        if self._is_echo_alone:
            return [CompletionChoice(first + choice.index, "", None, "length") for choice in output.outputs]
        return [self._choice(first + choice.index, choice) for choice in output.outputs]

    def _choice(self, index: int, choice: CompletionOutput) -> CompletionChoice:
        self._num_generated += len(choice.token_ids)
        places = self._logprobs.read(index, choice)
        logprobs = None if places is None else _completion_logprobs(places)
        return CompletionChoice(index, choice.text, logprobs, choice.finish_reason)

    def _usage(self) -> Usage:
        return usage_of(self._num_prompt_tokens, self._num_generated, sum(self._num_cached.values()))

    def _completion(self, choices: list[CompletionChoice], usage: Usage | msgspec.UnsetType | None) -> Completion:
        return Completion(self._id, "text_completion", self._created, self._model, choices, usage)


def _is_echo_alone(completion: CompletionRequest) -> bool:
    return bool(completion.echo) and completion.max_tokens == 0


def _echo_choice(index: int, prompt: _Prompt) -> CompletionChoice:
    return CompletionChoice(index, prompt.echo, prompt.echo_logprobs, None)


def _after_prompt(prompt: _Prompt, choice: CompletionChoice) -> CompletionChoice:
    """A whole choice, with what it says of the prompt before it."""
    logprobs = choice.logprobs
    if prompt.echo_logprobs is not None:
        logprobs = _join(prompt.echo_logprobs, logprobs)
    return CompletionChoice(choice.index, prompt.echo + choice.text, logprobs, choice.finish_reason, prompt.logprobs)


def _join(first: CompletionLogprobs, second: CompletionLogprobs | None) -> CompletionLogprobs:
    if second is None:
        return first
    return CompletionLogprobs(
        first.text_offset + second.text_offset,
        first.token_logprobs + second.token_logprobs,
        first.tokens + second.tokens,
        first.top_logprobs + second.top_logprobs,
    )


def _completion_logprobs(places: Sequence[PlaceLogprobs]) -> CompletionLogprobs:
    tops: list[dict[str, float] | None] = []
    for place in places:
        top: dict[str, float] = {}
        for token in (*place.top, place.sampled):
            top.setdefault(token.text, token.logprob)  # tokens that look alike share a key; the most probable is told
        tops.append(top)
    return CompletionLogprobs(
        text_offset=[place.offset for place in places],
        token_logprobs=[place.sampled.logprob for place in places],
        tokens=[place.sampled.text for place in places],
        top_logprobs=tops,
    )


def _split_prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """The four forms of `prompt` as a list of texts or of token id lists, whose ids are not checked yet."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidParameterError("The prompt is empty.", param="prompt")
    if isinstance(prompt[0], int | float):
        return [prompt]
    kind = type(prompt[0])
    if kind not in (str, list) or any(type(entry) is not kind for entry in prompt):
        raise InvalidParameterError(
            "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids.",
            param="prompt",
        )
    return prompt


def _check_number_of_choices(num_prompts: int, params: SamplingParams, best_of: int | None, limits: Limits) -> None:
    if best_of is not None and best_of != params.n:
        raise InvalidParameterError("best_of is not supported unless it equals n.", param="best_of")
    if num_prompts * params.n > limits.max_prompts:
        raise InvalidParameterError(
            f"prompt may have at most {limits.max_prompts} entries, multiplied by n.", param="prompt"
        )


def _check_number_of_prompt_logprobs(
    prepared: Sequence[PreparedRequest], completion: CompletionRequest, limits: Limits
) -> None:
    """Each choice repeats those of its prompt, at next to no cost for the engine."""
    params = prepared[0].params
    if params.prompt_logprobs is None:
        return
    num_tokens = params.n * sum(len(one.prompt_token_ids) for one in prepared)
    if num_tokens * (1 + params.prompt_logprobs) > limits.max_told_prompt_logprobs:
        raise InvalidParameterError(
            f"An answer may have at most {limits.max_told_prompt_logprobs} logprobs of prompts, but {num_tokens} "
            f"tokens with {params.prompt_logprobs} others each are asked for, in all prompts multiplied by n.",
            param="logprobs" if completion.prompt_logprobs is None else "prompt_logprobs",
        )
