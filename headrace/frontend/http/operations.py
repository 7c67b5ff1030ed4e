"""Routes for operators: is it alive, is it ready, what version, how busy."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace import __version__
from headrace.errors import EngineDeadError, ServiceUnavailableError
from headrace.frontend.async_llm import AsyncLLM
from headrace.frontend.http.errors import error_response
from headrace.frontend.metrics import CONTENT_TYPE

OK = b"{}"


class Version(msgspec.Struct):
    version: str


class Operations:
    """/live: this process answers. /health: the engine lives, and moves if it has work. /ready: send requests here."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    async def live(self, request: Request) -> Response:
        return _json(OK)

    async def health(self, request: Request) -> Response:
        if self._llm.is_dead:
            return error_response(_UnhealthyError("The engine is gone."))
        if self._llm.is_stalled:
            return error_response(_UnhealthyError("The engine has work and makes no progress."))
        return _json(OK)

    async def ready(self, request: Request) -> Response:
        if self._llm.is_ready:
            return _json(OK)
        if self._llm.is_dead:
            reason = "The engine is gone."
        elif self._llm.is_draining:
            reason = "The server is shutting down."
        else:
            reason = "The engine is still loading."
        return error_response(ServiceUnavailableError(reason))

    async def version(self, request: Request) -> Response:
        return _json(msgspec.json.encode(Version(__version__)))

    async def metrics(self, request: Request) -> Response:
        return Response(self._llm.metrics.render(), media_type=CONTENT_TYPE)


class _UnhealthyError(EngineDeadError):
    """To probes a dead or stuck engine is a server that is not available: another one may be."""

    status = 503


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
