"""Every exception that headrace raises on purpose, with what a client or an operator gets to see of it.

Two families. `RequestError` and its children are one client's affair: they become an HTTP status and the body
`{"error": {"message", "type", "param", "code"}}`, and nothing else is disturbed. `StartupError` and its children
end the start of a server with one clear sentence on stderr and a non-zero exit. Messages never carry large input, a
traceback or a path of the server (paths only in `StartupError`, which the operator reads).
"""

from __future__ import annotations

from typing import ClassVar


class HeadraceError(Exception):
    """The root of the tree. `message` is safe to show to whoever caused it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


# ---- one request ----------------------------------------------------------------------------------------------------


class RequestError(HeadraceError):
    """A request that cannot be served. `status`, `type` and `code` are what OpenAI's clients expect."""

    status: ClassVar[int] = 400
    type: ClassVar[str] = "invalid_request_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidParameterError(RequestError):
    """A field of the request has a value that is not allowed, or that this version does not support."""

    code = "invalid_value"


class ContextLengthError(RequestError):
    """Prompt plus answer do not fit the model's context. The message names both sizes."""

    code = "context_length_exceeded"


class KVCapacityError(RequestError):
    """The request fits the context but can never fit the whole KV cache. The message names both sizes."""

    code = "kv_capacity_exceeded"


class PromptTemplateError(RequestError):
    """The chat template refused the messages; the message is the template's own."""

    code = "invalid_messages"


class AuthenticationError(RequestError):
    """The request has no API key, or none that this server knows."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class NotFoundError(RequestError):
    """An unknown route or resource."""

    status = 404
    code = "not_found"


class ModelNotFoundError(RequestError):
    """The request names a model that is not served here."""

    status = 404
    code = "model_not_found"


class MethodNotAllowedError(RequestError):
    """The route exists, but not with this HTTP method."""

    status = 405
    code = "method_not_allowed"


class RequestTimeoutError(RequestError):
    """The client has begun a request and does not end it."""

    status = 408
    code = "request_timeout"


class RequestTooLargeError(RequestError):
    """The body is larger than the server accepts."""

    status = 413
    code = "request_too_large"


class HeadersTooLargeError(RequestError):
    """The headers are larger than the server accepts."""

    status = 431
    code = "headers_too_large"


class ServiceUnavailableError(RequestError):
    """The server takes no new requests now (starting or draining). `retry_after` is in seconds."""

    status = 503
    type = "service_unavailable_error"
    code = "service_unavailable"

    def __init__(self, message: str, *, retry_after: int = 5) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OverloadedError(ServiceUnavailableError):
    """More requests are waiting already than the server keeps."""

    code = "overloaded"


class EngineError(RequestError):
    """The engine failed while it worked on this request."""

    status = 500
    type = "server_error"
    code = "engine_error"


class EngineDeadError(EngineError):
    """The engine core is gone; nothing that was sent to it will be answered."""

    code = "engine_dead"


# ---- starting -------------------------------------------------------------------------------------------------------


class StartupError(HeadraceError):
    """The server (or an offline engine) cannot start. The message is the root cause, for the operator."""


class ConfigError(StartupError):
    """A flag or a combination of flags is wrong. `flag` names the first one, as the user would type it."""

    def __init__(self, message: str, *, flag: str | None = None) -> None:
        super().__init__(f"{flag}: {message}" if flag else message)
        self.flag = flag


class ModelFormatError(StartupError):
    """A model file is missing, cut short or malformed."""


class UnsupportedModelError(StartupError):
    """The model is well-formed, but of a kind that this version does not run. The message lists what it does run."""


class InvariantError(HeadraceError):
    """The engine's own book-keeping contradicts itself: a fault of ours, found by a check."""


class ProtocolError(HeadraceError):
    """A peer process sent bytes that are no message of ours, or speaks another protocol version."""
