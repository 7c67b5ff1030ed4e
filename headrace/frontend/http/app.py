"""The FastAPI application: which path leads to which route, and nothing else."""

from __future__ import annotations

from fastapi import FastAPI

from headrace import __version__
from headrace.config.resolved import HeadraceConfig
from headrace.frontend.async_llm import AsyncLLM
from headrace.frontend.http.errors import install_error_handlers
from headrace.frontend.http.openai.chat import ChatCompletions
from headrace.frontend.http.openai.completions import Completions
from headrace.frontend.http.openai.models import Models
from headrace.frontend.http.openai.protocol import (
    ChatCompletion,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    ModelList,
)
from headrace.frontend.http.openapi import describe, install_schemas
from headrace.frontend.http.operations import Operations
from headrace.frontend.http.tokenize import (
    Detokenized,
    DetokenizeRequest,
    Tokenization,
    Tokenized,
    TokenizeRequest,
)


def build_app(llm: AsyncLLM, config: HeadraceConfig) -> FastAPI:
    """Everything that HTTP clients of this server can reach. Bodies are read and checked by the routes themselves."""
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
    app.add_api_route("/v1/models", Models(config).get, openapi_extra=describe(ModelList))
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
