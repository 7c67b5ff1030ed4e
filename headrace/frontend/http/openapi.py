"""What /openapi.json says of bodies. Routes read their bodies themselves, so FastAPI cannot know; msgspec can."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from headrace.frontend.http.errors import ErrorBody
from headrace.frontend.http.openai.protocol import (
    ChatCompletion,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    GenerationRequest,
    ModelCard,
    ModelList,
)
from headrace.frontend.http.tokenize import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest

_REF = "#/components/schemas/{name}"
_DOCUMENTED = (
    ChatCompletionRequest,
    ChatCompletion,
    CompletionRequest,
    Completion,
    ModelList,
    ModelCard,
    TokenizeRequest,
    Tokenized,
    DetokenizeRequest,
    Detokenized,
    ErrorBody,
)


def describe(answer: type[msgspec.Struct], request: type[msgspec.Struct] | None = None) -> dict[str, Any]:
    """`openapi_extra` of a route that answers, and is asked, with these structs."""
    answers = _content(answer)
    error = {"description": "Error", "content": _content(ErrorBody)}
    extra: dict[str, Any] = {"responses": {"200": {"content": answers}, "default": error}}
    if request is not None:
        if issubclass(request, GenerationRequest):
            answers["text/event-stream"] = {"schema": {"type": "string"}}  # with `stream`
        extra["requestBody"] = {"required": True, "content": _content(request)}
    return extra


def install_schemas(app: FastAPI) -> None:
    """Make /openapi.json include the structs. It is put together when somebody first asks for it."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _, components = msgspec.json.schema_components(_DOCUMENTED, ref_template=_REF)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it


def _content(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=kind.__name__)}}}
