"""The application: which path leads to which route, and nothing else. (Starlette: ADR 0004.)"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp

from headrace.config.resolved import HeadraceConfig
from headrace.frontend.async_llm import AsyncLLM
from headrace.frontend.http.auth import RequireKey
from headrace.frontend.http.connection import BodyReader
from headrace.frontend.http.errors import ERROR_HANDLERS
from headrace.frontend.http.openai.chat import ChatCompletions
from headrace.frontend.http.openai.completions import Completions
from headrace.frontend.http.openai.models import Models
from headrace.frontend.http.openai.protocol import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    ModelCard,
    ModelList,
)
from headrace.frontend.http.openai.unsupported import CHAT, COMPLETIONS, DETOKENIZE, TOKENIZE
from headrace.frontend.http.openapi import Doc, Documentation, Endpoint, get, post
from headrace.frontend.http.operations import Operations, Version
from headrace.frontend.http.request_id import RequestId
from headrace.frontend.http.tokenize import (
    Detokenized,
    DetokenizeRequest,
    Tokenization,
    Tokenized,
    TokenizeRequest,
)


def build_app(llm: AsyncLLM, config: HeadraceConfig) -> ASGIApp:
    """Everything that HTTP clients of this server can reach, behind the keys, if there are any."""
    app: ASGIApp = _build_routes(llm, config)
    if config.server.api_key_digests:
        app = RequireKey(app, config.server.api_key_digests)
    return RequestId(app, log_requests=config.server.log_requests)


def _build_routes(llm: AsyncLLM, config: HeadraceConfig) -> Starlette:
    """Bodies are read and checked by the routes themselves."""
    endpoints = _endpoints(llm, config)
    pages = Documentation(endpoints, config)
    app = Starlette(
        routes=[
            *(endpoint.route for endpoint in endpoints),
            Route("/openapi.json", pages.document),
            Route("/docs", pages.swagger),
            Route("/redoc", pages.redoc),
        ],
        exception_handlers=ERROR_HANDLERS,
    )
    app.router.redirect_slashes = False
    return app


def _endpoints(llm: AsyncLLM, config: HeadraceConfig) -> list[Endpoint]:
    bodies = BodyReader(config.limits)
    chat, completions = ChatCompletions(llm, config, bodies), Completions(llm, config, bodies)
    models, operations, tokenization = Models(config), Operations(llm), Tokenization(llm, config, bodies)
    return [
        post(
            "/v1/chat/completions",
            chat.post,
            Doc("Continue a chat", ChatCompletion, ChatCompletionRequest, ChatCompletionChunk, CHAT),
        ),
        post(
            "/v1/completions",
            completions.post,
            Doc("Continue a text", Completion, CompletionRequest, Completion, COMPLETIONS),
        ),
        get("/v1/models", models.list, Doc("The served model, by each of its names", ModelList)),
        get("/v1/models/{model_id:path}", models.get, Doc("One of these", ModelCard, errors=(404,))),
        post(
            "/tokenize",
            tokenization.tokenize,
            Doc("Text or messages to tokens", Tokenized, TokenizeRequest, neutral=TOKENIZE),
        ),
        post(
            "/detokenize",
            tokenization.detokenize,
            Doc("Tokens to text", Detokenized, DetokenizeRequest, neutral=DETOKENIZE),
        ),
        get("/live", operations.live, Doc("Whether this process answers")),
        get("/health", operations.health, Doc("Whether the engine lives, and moves if it has work", errors=(503,))),
        get("/ready", operations.ready, Doc("Whether requests are worked on at once", errors=(503,))),
        get("/version", operations.version, Doc("This server's version", Version)),
        get("/metrics", operations.metrics, Doc("For Prometheus", media_type="text/plain")),
    ]
