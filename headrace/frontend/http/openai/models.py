"""GET /v1/models."""

from __future__ import annotations

import time

import msgspec
from starlette.responses import Response

from headrace.config.resolved import HeadraceConfig
from headrace.frontend.http.openai.protocol import ModelCard, ModelList


class Models:
    """The one model that is served. `created` is when this server started."""

    def __init__(self, config: HeadraceConfig) -> None:
        card = ModelCard(
            id=config.model.served_model_name,
            object="model",
            created=int(time.time()),
            owned_by="headrace",
            max_model_len=config.model.max_model_len,
        )
        self._body = msgspec.json.encode(ModelList("list", [card]))

    async def get(self) -> Response:
        return Response(self._body, media_type="application/json")
