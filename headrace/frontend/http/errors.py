"""Every error, whatever raised it, in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from headrace.errors import (
    AuthenticationError,
    EngineError,
    MethodNotAllowedError,
    NotFoundError,
    RequestError,
    ServiceUnavailableError,
)

logger = logging.getLogger(__name__)


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    error: ErrorDetail


def error_json(error: RequestError) -> bytes:
    return msgspec.json.encode(ErrorBody(ErrorDetail(error.message, error.type, error.param, error.code)))


def error_response(error: RequestError) -> Response:
    headers = {}
    if isinstance(error, ServiceUnavailableError):
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    return Response(error_json(error), error.status, headers, media_type="application/json")


def internal_error(error: Exception) -> EngineError:
    """What a client gets to see of a fault of ours: nothing. The log has it all."""
    logger.error("a request failed for a reason of ours", exc_info=error)
    return EngineError("The server failed while it worked on this request.")


async def _on_request_error(request: Request, error: RequestError) -> Response:
    return error_response(error)


async def _on_http_exception(request: Request, error: HTTPException) -> Response:
    response = error_response(_routing_error(error))
    response.headers.update(error.headers or {})
    return response


async def _on_disconnect(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=499)  # nginx's word for it; nobody is left to read it


async def _on_exception(request: Request, error: Exception) -> Response:
    return error_response(internal_error(error))


# Routing errors and exceptions of any route go through here.
ERROR_HANDLERS: dict[type[Exception], Any] = {
    RequestError: _on_request_error,
    HTTPException: _on_http_exception,
    ClientDisconnect: _on_disconnect,
    Exception: _on_exception,
}


def _routing_error(error: HTTPException) -> RequestError:
    if error.status_code == NotFoundError.status:
        return NotFoundError("There is no such route.")
    if error.status_code == MethodNotAllowedError.status:
        return MethodNotAllowedError("This route does not take this method.")
    return RequestError("The request is malformed.")
