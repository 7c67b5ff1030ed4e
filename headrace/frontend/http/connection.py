"""What a route does with its connection: read a bounded body, and give up work that nobody waits for any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from headrace.config.limits import Limits
from headrace.errors import InvalidParameterError, OverloadedError, RequestTooLargeError

T = TypeVar("T")


class BodyReader:
    """Reads the bodies of all requests. What has come of those that are not complete yet is bounded, too: senders who
    never finish cannot fill the memory."""

    def __init__(self, limits: Limits) -> None:
        self._max_bytes = limits.max_body_bytes
        self._max_incoming = limits.max_incoming_bytes
        self._num_incoming = 0  # bytes of bodies that are not complete

    async def read_json(self, request: Request) -> bytearray:
        """The body of a request that says it is JSON.

        Only `application/json` is taken: a browser sends that to another site only after asking, and the other kinds
        without. Raises `InvalidParameterError` for another type, `RequestTooLargeError`, `OverloadedError` while too
        much is coming at the same time, and `ClientDisconnect`."""
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise InvalidParameterError("The body must be JSON, sent with the header Content-Type: application/json.")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            raise _too_large(self._max_bytes)
        body = bytearray()
        try:
            async for chunk in request.stream():
                if len(body) + len(chunk) > self._max_bytes:
                    raise _too_large(self._max_bytes)
                if self._num_incoming + len(chunk) > self._max_incoming:
                    raise OverloadedError("Too many large requests are coming in at the same time; try again later.")
                self._num_incoming += len(chunk)
                body += chunk
        finally:
            self._num_incoming -= len(body)
        return body


def _too_large(max_bytes: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"The body may have at most {max_bytes} bytes.")


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes away: then this raises `ClientDisconnect`.

    The body must have been read before. However this ends, `work` has ended too."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
