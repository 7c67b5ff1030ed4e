"""uvicorn's reading of HTTP, with what it leaves to a proxy: a bound on headers, errors in our shape, and an end to the
patience with clients that do not do their part.

A client must send the rest of a request that it has begun, and take what there is of its answer. One that lets
`client_timeout` seconds pass without a byte of either is given up: until then it costs a connection, its part of a body
or of an answer, and in the case of an answer a place among the active requests, and it holds up a shutdown.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.errors import HeadersTooLargeError, RequestError, RequestTimeoutError
from headrace.frontend.http.errors import error_json

logger = logging.getLogger(__name__)

# The parser keeps a header until it is complete, however long it grows. Looked at after each read from the socket.
MAX_HEADER_BYTES = 64 * 1024


class Watch:
    """While it is on, calls `give_up` when `measure` gives the same twice, `seconds` apart. Costs one timer."""

    def __init__(self, seconds: float, measure: Callable[[], int], give_up: Callable[[], None]) -> None:
        self._seconds = seconds
        self._measure = measure
        self._give_up = give_up
        self._timer: asyncio.TimerHandle | None = None
        self._measured = 0

    def start(self) -> None:
        """Does nothing if it is on."""
        if self._timer is None:
            self._measured = self._measure()
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._measure() == self._measured:
            self._give_up()
        else:
            self.start()


class HTTPProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, client_timeout: float, **kwargs: Any) -> None:
        """`client_timeout`: seconds that a client may be silent when it is its turn."""
        super().__init__(*args, **kwargs)
        self._client_timeout = client_timeout
        self._num_received_bytes = 0
        self._unanswered: deque[Any] = deque()  # uvicorn's cycles of the requests that have come, in their order
        self._num_held_bytes = 0  # since anything was handed on: a request's head or trailer in the making
        self._receiving = Watch(client_timeout, lambda: self._num_received_bytes, self._give_up_receiving)
        self._sending = Watch(client_timeout, self._num_unsent_bytes, self._give_up_sending)

    # ---- what comes from the client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._receiving.start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiving.stop()
        self._sending.stop()
        for cycle in self._unanswered:  # uvicorn tells the last one only
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._num_received_bytes += len(data)
        self._num_held_bytes += len(data)
        super().data_received(data)
        if self._num_held_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refuse(HeadersTooLargeError(f"The headers may have at most {MAX_HEADER_BYTES} bytes."))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._receiving.start()

    def on_headers_complete(self) -> None:
        self._num_held_bytes = 0
        if not self.flow.write_paused:
            self._sending.stop()  # what was left of the answer before may get company now
        super().on_headers_complete()
        self._unanswered.append(self.cycle)
        if len(self._unanswered) == 2:
            self.flow.resume_reading()  # uvicorn has paused it, and would not see the client go away

    def on_body(self, body: bytes) -> None:
        self._num_held_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_held_bytes = 0
        self._receiving.stop()
        super().on_message_complete()

    # ---- what goes to the client. While writing is paused, and behind the end of an answer, nothing is added.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._sending.start()

    def resume_writing(self) -> None:
        self._sending.stop()
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._sending.start()

    def _num_unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    # ---- ends

    def _give_up_receiving(self) -> None:
        if self.flow.read_paused:
            self._receiving.start()  # it is we who do not listen
        elif not self._num_received_bytes:
            self.transport.close()
        else:
            self._refuse(RequestTimeoutError(f"The rest of the request did not come for {self._client_timeout:g} s."))

    def _is_answering(self) -> bool:
        """Whether the request that is being received has begun to be answered, or one before it is not done."""
        cycle: Any = self.cycle  # None until the first request's headers are complete
        if cycle is None or cycle.scope is not self.scope:
            return bool(self._unanswered)
        return bool(cycle.response_started) or self._unanswered[0] is not cycle

    def _give_up_sending(self) -> None:
        if self.transport.get_write_buffer_size():
            logger.info("a client has taken nothing of its answer for %g s and is given up", self._client_timeout)
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it for bytes that are no HTTP."""
        self._refuse(RequestError("The request is malformed."))

    def _refuse(self, error: RequestError) -> None:
        """Answer and hang up; without a word where the client would take it for a part of another answer."""
        if self._is_answering():
            self.transport.abort()
            return
        body = error_json(error)
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
