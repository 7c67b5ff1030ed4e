"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from headrace.config.resolved import HeadraceConfig
from headrace.contracts.sampling_params import MAX_COUNT, SamplingParams, check_integer
from headrace.errors import InvalidParameterError
from headrace.frontend.async_llm import AsyncLLM
from headrace.frontend.chat_prompt import ChatPrompt
from headrace.frontend.http.connection import BodyReader, until_disconnect
from headrace.frontend.http.openai.protocol import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatTokenLogprob,
    TopLogprob,
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
from headrace.frontend.http.openai.unsupported import CHAT
from headrace.frontend.http.sse import DONE, EventStream, event
from headrace.frontend.logprobs import LogprobsReader, PlaceLogprobs
from headrace.frontend.request_output import CompletionOutput, RequestOutput


class ChatCompletions:
    """The route. A streamed answer begins when its first token is there: until then an error is an HTTP status."""

    def __init__(self, llm: AsyncLLM, config: HeadraceConfig, bodies: BodyReader) -> None:
        self._llm = llm
        self._bodies = bodies
        self._models = config.model.served_model_names
        self._defaults = config.model.sampling_defaults
        self._limits = config.limits

    async def post(self, request: Request) -> Response:
        body = await self._bodies.read_json(request)
        chat = await parse_request(body, ChatCompletionRequest, CHAT, self._models)
        params = self._sampling_params(chat)
        prepared = await self._llm.prepare(_prompt(chat), params, scheduling=scheduling_of(chat))
        logprobs = logprobs_reader(self._llm.tokenizer, chat, params)
        answer = _Answer(self._llm, f"chatcmpl-{prepared.label}", self._models[0], logprobs)
        outputs = self._llm.generate(prepared)
        if chat.stream:
            first = await until_disconnect(request.receive, anext(outputs))
            return EventStream(answer.events(first, outputs, with_usage=wants_usage(chat)))
        whole = await until_disconnect(request.receive, answer.whole(outputs, params.prompt_logprobs))
        return Response(msgspec.json.encode(whole), media_type="application/json")

    def _sampling_params(self, chat: ChatCompletionRequest) -> SamplingParams:
        max_tokens = chat.max_tokens
        if chat.max_completion_tokens is not None:
            check_integer("max_completion_tokens", chat.max_completion_tokens, 1, MAX_COUNT)
            if max_tokens is not None:  # it does not count, but what is wrong is told
                check_integer("max_tokens", max_tokens, 1, MAX_COUNT)
            max_tokens = chat.max_completion_tokens
        num_top = chat.top_logprobs or 0
        check_integer("top_logprobs", num_top, 0, self._limits.max_logprobs)
        if num_top and not chat.logprobs:
            raise InvalidParameterError("top_logprobs needs logprobs to be true.", param="top_logprobs")
        return sampling_params_of(chat, self._defaults, max_tokens, num_top if chat.logprobs else None)


def _prompt(chat: ChatCompletionRequest) -> ChatPrompt:
    return ChatPrompt(
        chat.messages, chat.add_generation_prompt, bool(chat.continue_final_message), chat.chat_template_kwargs or {}
    )


class _Answer:
    """One answer in the making: its id, and the shapes that the outputs take."""

    def __init__(self, llm: AsyncLLM, completion_id: str, model: str, logprobs: LogprobsReader) -> None:
        self._llm = llm
        self._id = completion_id
        self._model = model
        self._logprobs = logprobs
        self._created = int(time.time())

    async def whole(
        self, outputs: AsyncGenerator[RequestOutput, None], num_top_of_prompt: int | None
    ) -> ChatCompletion:
        async with aclosing(outputs):
            output = await anext(outputs)  # the only one: FINAL_ONLY has all choices in it
        choices = [
            ChatChoice(choice.index, ChatMessage("assistant", choice.text), logprobs, choice.finish_reason)
            for choice, logprobs in zip(output.outputs, await self._read(output), strict=True)
        ]
        usage = _usage(output, sum(len(choice.token_ids) for choice in output.outputs))
        prompt = await read_prompt_logprobs(self._llm, self._logprobs, output, num_top_of_prompt)
        return ChatCompletion(self._id, "chat.completion", self._created, self._model, choices, usage, prompt)

    async def events(
        self, first: RequestOutput, later: AsyncGenerator[RequestOutput, None], *, with_usage: bool
    ) -> AsyncGenerator[bytes, None]:
        """For each choice: the role, pieces of text, and an empty piece with the finish reason. Then, if asked for, one
        chunk without choices that has the usage. What is there at one time is one string, as in `completions.py`."""
        usage = None if with_usage else UNSET
        begun: set[int] = set()
        num_generated = 0
        async with aclosing(later):
            output = first
            while True:
                events: list[bytes] = []
                for choice, logprobs in zip(output.outputs, await self._read(output), strict=True):
                    num_generated += len(choice.token_ids)
                    pieces = _chunk_choices(choice, logprobs, begun)
                    events += [event(self._chunk([piece], usage)) for piece in pieces]
                if output.finished:
                    break
                if events:
                    yield b"".join(events)
                output = await anext(later)
        if with_usage:
            events.append(event(self._chunk([], _usage(output, num_generated))))
        yield b"".join([*events, DONE])

    async def _read(self, output: RequestOutput) -> list[ChatLogprobs | None]:
        """For each of its choices."""
        if has_many_logprobs(output):
            return await self._llm.in_thread(lambda: list(map(self._read_choice, output.outputs)))
        return list(map(self._read_choice, output.outputs))

    def _read_choice(self, choice: CompletionOutput) -> ChatLogprobs | None:
        places = self._logprobs.read(choice.index, choice)
        return None if places is None else ChatLogprobs([_token_logprob(place) for place in places])

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | msgspec.UnsetType | None) -> ChatCompletionChunk:
        return ChatCompletionChunk(self._id, "chat.completion.chunk", self._created, self._model, choices, usage)


def _token_logprob(place: PlaceLogprobs) -> ChatTokenLogprob:
    top = [TopLogprob(token.text, token.logprob, list(token.data)) for token in place.top]
    return ChatTokenLogprob(place.sampled.text, place.sampled.logprob, list(place.sampled.data), top)


def _chunk_choices(choice: CompletionOutput, logprobs: ChatLogprobs | None, begun: set[int]) -> list[ChatChunkChoice]:
    """The pieces that tell of this output. `begun` are the choices whose role has been told. Logprobs come with their
    tokens, also where the text of these waits for more."""
    pieces: list[ChatChunkChoice] = []
    if choice.index not in begun:
        begun.add(choice.index)
        pieces.append(ChatChunkChoice(choice.index, ChatDelta("assistant", ""), None, None))
    if choice.text or (logprobs is not None and logprobs.content):
        pieces.append(ChatChunkChoice(choice.index, ChatDelta(content=choice.text), logprobs, None))
    if choice.finish_reason is not None:
        pieces.append(ChatChunkChoice(choice.index, ChatDelta(), None, choice.finish_reason))
    return pieces


def _usage(output: RequestOutput, num_generated: int) -> Usage:
    return usage_of(len(output.prompt_token_ids), num_generated, output.num_cached_tokens)
