"""/openapi.json (OpenAPI 3.1): made of the routes, of the structs that they read and write, and of the server's limits.

It is put together when somebody first asks for it. /docs and /redoc show it in a browser.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from headrace import __version__
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


class Endpoint(NamedTuple):
    route: Route
    doc: Doc


Answer = Callable[[Request], Awaitable[Response]]


def get(path: str, answer: Answer, doc: Doc) -> Endpoint:
    return Endpoint(Route(path, answer, methods=["GET", "HEAD"]), doc)


def post(path: str, answer: Answer, doc: Doc) -> Endpoint:
    return Endpoint(Route(path, answer, methods=["POST"]), doc)


class Documentation:
    """The document of these endpoints, and the pages that show it."""

    def __init__(self, endpoints: Sequence[Endpoint], config: HeadraceConfig) -> None:
        self._endpoints = endpoints
        self._config = config
        self._document: bytes | None = None

    async def document(self, request: Request) -> Response:
        if self._document is None:
            self._document = msgspec.json.encode(_document(self._endpoints, self._config))
        return Response(self._document, media_type=JSON)

    async def swagger(self, request: Request) -> Response:
        return HTMLResponse(SWAGGER_PAGE)

    async def redoc(self, request: Request) -> Response:
        return HTMLResponse(REDOC_PAGE)


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>headrace</title>{}
</body>
</html>
"""
_SCRIPTS = "https://cdn.jsdelivr.net/npm"

SWAGGER_PAGE = _PAGE.format(
    f"""
<link rel="stylesheet" href="{_SCRIPTS}/swagger-ui-dist@5/swagger-ui.css"></head>
<body>
<div id="swagger-ui"></div>
<script src="{_SCRIPTS}/swagger-ui-dist@5/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({{url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true}})</script>"""
)

REDOC_PAGE = _PAGE.format(
    f"""</head>
<body style="margin: 0">
<redoc spec-url="/openapi.json"></redoc>
<script src="{_SCRIPTS}/redoc@2/bundles/redoc.standalone.js"></script>"""
)


def _document(endpoints: Sequence[Endpoint], config: HeadraceConfig) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route, doc in endpoints:
        for method in sorted(route.methods or ()):
            operation = _operation(route, doc, method, config)
            paths.setdefault(route.path_format, {})[method.lower()] = operation
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "headrace", "version": __version__},
        "paths": paths,
        "components": {"schemas": _schemas([endpoint.doc for endpoint in endpoints], config)},
    }
    if config.server.api_key_digests:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


def _operation(route: Route, doc: Doc, method: str, config: HeadraceConfig) -> dict[str, Any]:
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
