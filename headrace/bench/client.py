"""Asks an OpenAI-compatible server for streamed answers, and measures them.

Only a whole answer counts as completed: status 200, an event stream, a finish reason, `data: [DONE]`, and a usage,
which is where the numbers of tokens come from (an event may hold several, or none). Everything else is a failure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace.bench.http_client import ExchangeError, HTTPClient
from headrace.bench.record import Record
from headrace.bench.workload import Ask

PATHS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}
EVENT_STREAM = "text/event-stream"
MAX_ERROR_LENGTH = 300  # characters of a server's words that go into a report


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def has_text(self) -> bool:
        delta = self.delta or _Delta()
        return bool(self.text or delta.content or delta.reasoning_content or delta.reasoning)


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class EventSplitter:
    """Bytes of an event stream to the data of its events, however the bytes were cut."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []  # of the event that has begun

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            text = line.rstrip(b"\r")
            if text.startswith(b"data:"):
                self._data.append(text[5:].removeprefix(b" "))
            elif not text and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events


class Answer:
    """A streamed answer as it comes in."""

    _decoder = msgspec.json.Decoder(_Event)

    def __init__(self, record: Record) -> None:
        self._record = record
        self._is_stream = False
        self._splitter = EventSplitter()
        self._words = b""  # of a server that does not stream
        self._is_done = False
        self._usage: _Usage | None = None

    def on_status(self, status: int, content_type: str) -> None:
        self._record.status = status
        self._is_stream = status == 200 and content_type == EVENT_STREAM

    def on_body(self, data: bytes, now: float) -> None:
        if not self._is_stream:
            self._words += data[: MAX_ERROR_LENGTH * 4 - len(self._words)]
            return
        for event in self._splitter.feed(data):
            self._take(event, now)

    def _take(self, data: bytes, now: float) -> None:
        record = self._record
        if data == b"[DONE]":
            self._is_done = True
            return
        try:
            event = self._decoder.decode(data)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise ExchangeError(f"an event that is no completion: {error}") from None
        if event.error is not None:
            raise ExchangeError(f"the server broke off: {_error_message(event.error)}")
        self._usage = event.usage or self._usage
        for choice in event.choices:
            if choice.has_text:
                record.text_times.append(now)
            if choice.finish_reason is not None:
                record.finish_reason, record.finished = choice.finish_reason, now

    def complete(self) -> None:
        """The answer has come to its end. Raises `ExchangeError` if it was not a whole one."""
        record, usage = self._record, self._usage
        if record.status != 200:
            raise ExchangeError(f"status {record.status}: {_message_of_body(self._words)}")
        if not self._is_stream:
            raise ExchangeError("the answer is not a stream of events")
        if not self._is_done or record.finish_reason is None:
            raise ExchangeError("the stream ended before the answer did")
        if usage is None or usage.completion_tokens is None:
            raise ExchangeError("the server sent no usage, although stream_options.include_usage asked for it")
        if usage.completion_tokens < 1:
            raise ExchangeError("the answer has no tokens")
        # Tokens that are no text, such as a half of a character: their news is that the answer is over.
        record.text_times = record.text_times or [record.finished]
        record.num_prompt_tokens = usage.prompt_tokens
        record.num_output_tokens = usage.completion_tokens
        record.num_cached_tokens = (usage.prompt_tokens_details or _CachedTokens()).cached_tokens or 0


class Client:
    """Measures requests to one model of a server. `more` are fields that go into every body."""

    def __init__(
        self,
        http: HTTPClient,
        backend: str,
        model: str,
        more: Mapping[str, Any],
        timeout_s: float,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._http = http
        self._path = PATHS[backend]
        self._model = model
        self._more = more
        self._timeout_s = timeout_s
        self._now = now

    def encode(self, ask: Ask) -> bytes:
        """The body of a request; done beforehand, so that it takes no time of the run."""
        body: dict[str, Any] = {
            "model": self._model,
            "messages" if ask.is_chat else "prompt": ask.prompt,
            "max_tokens": ask.num_output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return msgspec.json.encode(body | dict(self._more))

    async def measure(self, body: bytes, num_wanted_tokens: int, arrival: float) -> Record:
        """Never raises: what goes wrong is the record's `error`."""
        record = Record(arrival, self._now(), num_wanted_tokens=num_wanted_tokens)
        answer = Answer(record)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._http.exchange("POST", self._path, body, answer)
            answer.complete()
        except TimeoutError:
            record.error = f"no whole answer within {self._timeout_s:g} s"
        except (ExchangeError, OSError) as error:
            record.error = str(error)
        if record.error is not None:
            record.finished = self._now()
        return record


class _Document:
    """A short answer, whole."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""

    def on_status(self, status: int, content_type: str) -> None:
        self.status = status

    def on_body(self, data: bytes, now: float) -> None:
        self.body += data


async def get_json(http: HTTPClient, path: str) -> tuple[int, Any]:
    """Status, and the body, or an error's message where the status is not 200. Raises `ExchangeError`."""
    document = _Document()
    await http.exchange("GET", path, None, document)
    if document.status != 200:
        return document.status, _message_of_body(document.body)
    try:
        return document.status, msgspec.json.decode(document.body)
    except msgspec.DecodeError:
        raise ExchangeError(f"the answer to GET {path} is no JSON") from None


def _message_of_body(body: bytes) -> str:
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body.decode(errors="replace")[:MAX_ERROR_LENGTH]
    return _error_message(found.get("error", found) if isinstance(found, dict) else found)


def _error_message(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message if message is not None else error)[:MAX_ERROR_LENGTH]
