"""uvicorn's reading of HTTP, with two things that it leaves to a proxy: a bound on headers, and errors in our shape."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.errors import HeadersTooLargeError, RequestError
from headrace.frontend.http.errors import error_json

# The parser keeps a header until it is complete, however long it grows. Looked at after each read from the socket.
MAX_HEADER_BYTES = 64 * 1024


class HTTPProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._num_held_bytes = 0  # since anything was handed on: a request's head or trailer in the making

    def data_received(self, data: bytes) -> None:
        self._num_held_bytes += len(data)
        super().data_received(data)
        if self._num_held_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refuse(HeadersTooLargeError(f"The headers may have at most {MAX_HEADER_BYTES} bytes."))

    def on_headers_complete(self) -> None:
        self._num_held_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_held_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_held_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it for bytes that are no HTTP."""
        self._refuse(RequestError("The request is malformed."))

    def _refuse(self, error: RequestError) -> None:
        """Answer and hang up."""
        body = error_json(error)
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
