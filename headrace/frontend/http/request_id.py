"""`X-Request-Id`: the client's own, or one of ours, on every answer, so that a complaint can be found in a log."""

from __future__ import annotations

import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADER = b"x-request-id"
_VALID = re.compile(rb"[\x21-\x7e]{1,128}")  # what may stand in a header and in a line of a log


class RequestId:
    """ASGI middleware. An id that is too long, or not printable, is replaced like one that is missing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        request_id = given if _VALID.fullmatch(given) else secrets.token_hex(16).encode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (_HEADER, request_id)]
            await send(message)

        await self._app(scope, receive, send_with_id)
