"""Server-sent events (WHATWG HTML, section 9.2), written as raw bytes: one `data:` line for each event.

Once the first byte is out the status is 200 and stays it, so an error after that is an event of its own: one
`data: {"error": ...}`, then the stream closes, without a last chunk and without `[DONE]`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.errors import RequestError
from headrace.frontend.http.connection import until_disconnect
from headrace.frontend.http.errors import error_json, internal_error

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


def event(message: msgspec.Struct) -> bytes:
    return b"data: " + _encode(message) + b"\n\n"


class EventStream(Response):
    """Sends what an async generator of events yields, several at a time if they are one string; unless it fails, the
    last one ends with `DONE`. When the client goes away the generator is closed at once."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self._events = events
        self.status_code = 200
        self.background = None
        # A proxy that buffers (nginx does unless told) would turn a stream of tokens into one late answer.
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # OSError: the connection broke while something was sent.
        with contextlib.suppress(ClientDisconnect, OSError):
            await until_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        is_done = False
        async with aclosing(_with_error_event(self._events)) as events:
            async for data in events:
                is_done = data.endswith(DONE)  # then the end of the body goes into the same packet
                await send({"type": "http.response.body", "body": data, "more_body": not is_done})
        if not is_done:
            await send({"type": "http.response.body", "body": b""})


async def _with_error_event(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same events; an exception that ends them becomes the last."""
    try:
        async with aclosing(events):
            async for data in events:
                yield data
    except RequestError as error:
        yield b"data: " + error_json(error) + b"\n\n"
    except Exception as error:
        yield b"data: " + error_json(internal_error(error)) + b"\n\n"
