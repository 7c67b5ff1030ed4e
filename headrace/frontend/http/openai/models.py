"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.config.resolved import HeadraceConfig
from headrace.errors import ModelNotFoundError
from headrace.frontend.http.openai.protocol import ModelCard, ModelList


class Models:
    """The one model that is served, under each of its names. `created` is when this server started."""

    def __init__(self, config: HeadraceConfig) -> None:
        created = int(time.time())
        self._cards = {
            name: ModelCard(name, "model", created, "headrace", config.model.max_model_len)
            for name in config.model.served_model_names
        }

    async def list(self, request: Request) -> Response:
        return _json(ModelList("list", list(self._cards.values())))

    async def get(self, request: Request) -> Response:
        card = self._cards.get(request.path_params["model_id"])
        if card is None:
            raise ModelNotFoundError("There is no such model here; GET /v1/models lists what there is.", param="model")
        return _json(card)


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
