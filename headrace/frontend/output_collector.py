"""Where the output handler leaves news of one request and its reader fetches them.

A reader that is slower than the engine finds everything since its last visit merged into one output, so what waits here
never grows beyond one answer, and the handler never waits for a reader.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from headrace.contracts.sampling_params import OutputKind
from headrace.errors import RequestError
from headrace.frontend.request_output import RequestOutput


class OutputSink(Protocol):
    """What the output processor needs of it."""

    def put(self, output: RequestOutput) -> None: ...

    def fail(self, error: RequestError) -> None: ...


class RequestOutputCollector:
    def __init__(self, output_kind: OutputKind) -> None:
        self._is_delta = output_kind is OutputKind.DELTA
        self._pending: RequestOutput | None = None
        self._error: RequestError | None = None
        self._waiter: asyncio.Future[None] | None = None  # a future, as an Event has one more object for each wait

    def put(self, output: RequestOutput) -> None:
        if self._pending is None:
            self._pending = output
        else:
            self._pending.merge(output, is_delta=self._is_delta)
        self._wake_reader()

    def fail(self, error: RequestError) -> None:
        """The request ends with this error, after what is pending."""
        self._error = error
        self._wake_reader()

    async def get(self) -> RequestOutput:
        """The next news. Raises the request's error once everything before it was fetched."""
        while (output := self.take()) is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return output

    def take(self) -> RequestOutput | None:
        """What `get` would return, or None if it would wait."""
        output, self._pending = self._pending, None
        if output is None and self._error is not None:
            raise self._error
        return output

    def _wake_reader(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
