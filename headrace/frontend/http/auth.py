"""API keys. Whoever has none gets nowhere but to the probes: what is open is listed, and everything else is closed.

The path is compared as it came, byte for byte, before anything has decoded or routed it: a path that a router takes for
an open one in spite of its spelling is closed here.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.errors import AuthenticationError
from headrace.frontend.http.errors import error_response

OPEN_PATHS = frozenset({b"/live", b"/health", b"/ready"})

_BEARER = b"bearer "


class RequireKey:
    """ASGI middleware that lets pass who sends `Authorization: Bearer KEY` with one of the keys."""

    def __init__(self, app: ASGIApp, key_digests: Sequence[bytes]) -> None:
        """`key_digests`: SHA-256 of each key."""
        self._app = app
        self._key_digests = tuple(key_digests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["raw_path"] in OPEN_PATHS or self._has_key(scope):
            await self._app(scope, receive, send)
        else:
            error = AuthenticationError("This needs an API key: send the header Authorization: Bearer KEY.")
            await error_response(error)(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1 or given[0][: len(_BEARER)].lower() != _BEARER:
            return False
        digest = hashlib.sha256(given[0][len(_BEARER) :].strip()).digest()
        # All of them, and each in constant time: how long it takes says nothing of how near a guess was.
        matches = [hmac.compare_digest(digest, known) for known in self._key_digests]
        return any(matches)
