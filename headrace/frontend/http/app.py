"""The FastAPI application: which path leads to which route, and nothing else."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from headrace import __version__
from headrace.config.resolved import HeadraceConfig
from headrace.frontend.async_llm import AsyncLLM
from headrace.frontend.http.auth import RequireKey
from headrace.frontend.http.errors import install_error_handlers
from headrace.frontend.http.openai.chat import ChatCompletions
from headrace.frontend.http.openai.completions import Completions
from headrace.frontend.http.openai.models import Models
from headrace.frontend.http.openai.protocol import (
    ChatCompletion,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    ModelCard,
    ModelList,
)
from headrace.frontend.http.openapi import describe, install_schemas
from headrace.frontend.http.operations import Operations
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


def _build_routes(llm: AsyncLLM, config: HeadraceConfig) -> FastAPI:
    """Bodies are read and checked by the routes themselves."""
    app = FastAPI(title="headrace", version=__version__, redirect_slashes=False)
    install_error_handlers(app)
    install_schemas(app)
    operations = Operations(llm)
    app.add_api_route(
        "/v1/chat/completions",
        ChatCompletions(llm, config).post,
        methods=["POST"],
        openapi_extra=describe(ChatCompletion, ChatCompletionRequest),
    )
    app.add_api_route(
        "/v1/completions",
        Completions(llm, config).post,
        methods=["POST"],
        openapi_extra=describe(Completion, CompletionRequest),
    )
    models = Models(config)
    app.add_api_route("/v1/models", models.list, openapi_extra=describe(ModelList))
    app.add_api_route("/v1/models/{model_id:path}", models.get, openapi_extra=describe(ModelCard))
    tokenization = Tokenization(llm, config)
    app.add_api_route(
        "/tokenize", tokenization.tokenize, methods=["POST"], openapi_extra=describe(Tokenized, TokenizeRequest)
    )
    app.add_api_route(
        "/detokenize", tokenization.detokenize, methods=["POST"], openapi_extra=describe(Detokenized, DetokenizeRequest)
    )
    app.add_api_route("/live", operations.live)
    app.add_api_route("/health", operations.health)
    app.add_api_route("/ready", operations.ready)
    app.add_api_route("/version", operations.version)
    app.add_api_route("/metrics", operations.metrics)
    return app
