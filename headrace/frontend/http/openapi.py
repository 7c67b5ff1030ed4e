"""/openapi.json (OpenAPI 3.1): made of the routes, of the structs that they read and write, and of the server's limits.

Routes read and check their bodies themselves, so FastAPI cannot know them; what it would say of its own kind of errors
would be wrong. It is put together when somebody first asks for it.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.routing import APIRoute

from headrace.config.resolved import HeadraceConfig
from headrace.frontend.http.auth import OPEN_PATHS
from headrace.frontend.http.errors import ErrorBody
from headrace.frontend.http.openai.unsupported import Neutral

JSON = "application/json"
EVENT_STREAM = "text/event-stream"

# Whatever the route: bytes that are no HTTP, headers without end, a fault of ours.
_ANYWHERE = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, HTTPStatus.INTERNAL_SERVER_ERROR)
_WITH_BODY = (
    HTTPStatus.NOT_FOUND, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.SERVICE_UNAVAILABLE,
)  # fmt: skip


class Doc(msgspec.Struct, frozen=True):
    """One route, in words and structs."""

    summary: str
    answer: type[msgspec.Struct] | None = None  # None: an empty object
    request: type[msgspec.Struct] | None = None
    event: type[msgspec.Struct] | None = None  # of an answer that is streamed
    neutral: Neutral = {}  # fields of the request that are refused unless they have these values
    errors: tuple[int, ...] = ()  # statuses beside those that every route may answer with
    media_type: str = JSON  # of the answer


def describe(doc: Doc) -> dict[str, Any]:
    """For `add_api_route`: keeps a route's description until it is asked for."""
    return {"openapi_extra": {"doc": doc}}


def install_schemas(app: FastAPI, config: HeadraceConfig) -> None:
    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, config)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it


def _document(app: FastAPI, config: HeadraceConfig) -> dict[str, Any]:
    routes = [(route, doc) for route in app.routes if isinstance(route, APIRoute) and (doc := _doc_of(route))]
    paths: dict[str, dict[str, Any]] = {}
    for route, doc in routes:
        for method in sorted(route.methods or ()):
            operation = _operation(route, doc, method, config)
            paths.setdefault(route.path_format, {})[method.lower()] = operation
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": app.title, "version": app.version},
        "paths": paths,
        "components": {"schemas": _schemas([doc for _, doc in routes], config)},
    }
    if config.server.api_key_digests:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


def _doc_of(route: APIRoute) -> Doc | None:
    return (route.openapi_extra or {}).get("doc")


def _operation(route: APIRoute, doc: Doc, method: str, config: HeadraceConfig) -> dict[str, Any]:
    needs_key = bool(config.server.api_key_digests) and route.path.encode() not in OPEN_PATHS
    content = {doc.media_type: {"schema": _answer_schema(doc)}}
    if doc.event is not None:
        content[EVENT_STREAM] = {"schema": _event_schema(doc.event)}
    statuses = [*_ANYWHERE, *doc.errors, *(_WITH_BODY if doc.request else ())]
    if needs_key:
        statuses.append(HTTPStatus.UNAUTHORIZED)
    errors = {JSON: {"schema": _ref(ErrorBody)}}
    if method == "HEAD":
        content, errors = {}, {}
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()}{route.path_format}".translate(str.maketrans("/{}", "___")),
        "summary": doc.summary,
        "responses": {
            "200": {"description": HTTPStatus.OK.phrase, "content": content},
            **{str(int(s)): {"description": HTTPStatus(s).phrase, "content": errors} for s in sorted(statuses)},
        },
    }
    if doc.request is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": _ref(doc.request)}}}
    if "model_id" in route.param_convertors:
        model = {"type": "string", "enum": list(config.model.served_model_names)}
        operation["parameters"] = [{"name": "model_id", "in": "path", "required": True, "schema": model}]
    if needs_key:
        operation["security"] = [{"key": []}]
    return operation


def _answer_schema(doc: Doc) -> dict[str, Any]:
    if doc.answer is not None:
        return _ref(doc.answer)
    return {"type": "object"} if doc.media_type == JSON else {"type": "string"}


def _event_schema(event: type[msgspec.Struct]) -> dict[str, Any]:
    """Of each event of the stream, as OpenAPI before 3.2 has it."""
    data = {"contentMediaType": JSON, "contentSchema": {"anyOf": [_ref(event), _ref(ErrorBody)]}}
    return {
        "type": "object",
        "description": "With `stream`: server-sent events, the last of which is `[DONE]` unless the answer has failed.",
        "properties": {"data": {"type": "string", "anyOf": [{"enum": ["[DONE]"]}, data]}},
        "required": ["data"],
    }


def _schemas(docs: list[Doc], config: HeadraceConfig) -> dict[str, Any]:
    """Every struct, with its bounds and words."""
    from headrace.frontend.http.field_docs import STRUCTS, bounds_of, description_of

    structs = {struct: None for doc in docs for struct in (doc.request, doc.answer, doc.event, ErrorBody) if struct}
    _, schemas = msgspec.json.schema_components(structs, ref_template=_REF)
    requests = {doc.request.__name__: doc for doc in docs if doc.request}
    models = config.model.served_model_names
    bounds = bounds_of(config.limits, models, has_priorities=config.scheduler.policy == "priority")
    for name, schema in schemas.items():
        schema.setdefault("description", STRUCTS.get(name))
        for field, kind in schema["properties"].items():
            if name in requests:
                kind.update(bounds.get(f"{name}.{field}", bounds.get(field, {})))
            kind["description"] = description_of(name, field)
        if name in requests:
            for field, values in requests[name].neutral.items():
                schema["properties"][field] = {
                    "enum": [*values, None],
                    "description": "Not supported: only values that ask for nothing.",
                }
    return schemas


_REF = "#/components/schemas/{name}"


def _ref(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {"$ref": _REF.format(name=struct.__name__)}
