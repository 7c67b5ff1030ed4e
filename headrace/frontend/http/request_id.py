"""`X-Request-Id`: the client's own, or one of ours, on every answer, so that a complaint can be found in a log."""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

_HEADER = b"x-request-id"
_MAX_LOGGED_PATH = 256
_VALID = re.compile(rb"[\x21-\x7e]{1,128}")  # what may stand in a header and in a line of a log


class RequestId:
    """ASGI middleware. An id that is too long, or not printable, is replaced like one that is missing."""

    def __init__(self, app: ASGIApp, *, log_requests: bool = False) -> None:
        self._app = app
        self._log_requests = log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        request_id = given if _VALID.fullmatch(given) else secrets.token_hex(16).encode()

        start, status = time.monotonic(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (_HEADER, request_id)]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if self._log_requests:
                # The path as it came, quoted: it may hold anything, and is the client's word.
                path, seconds = scope["raw_path"][:_MAX_LOGGED_PATH], time.monotonic() - start
                logger.info("%s %s %a: %d in %.3f s", request_id.decode(), scope["method"], path, status, seconds)
