"""docs/api.md leaves out no route, no field of a request and no error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace import errors
from headrace.frontend.http.openai.protocol import ChatCompletionRequest, CompletionRequest
from headrace.frontend.http.openai.unsupported import CHAT, COMPLETIONS, DETOKENIZE, IGNORED, TOKENIZE
from headrace.frontend.http.tokenize import DetokenizeRequest, TokenizeRequest
from tests.system.server import REPOSITORY

PAGE = Path(REPOSITORY, "docs/api.md").read_text()
NAMED = {word for code in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"[\w./{}]+", code)}


def request_errors(kind: type[errors.RequestError] = errors.RequestError) -> Iterator[type[errors.RequestError]]:
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from request_errors(child)


@pytest.mark.parametrize("struct", [ChatCompletionRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest])
def test_every_field(struct: type[msgspec.Struct]) -> None:
    assert set(struct.__struct_fields__) <= NAMED


def test_every_field_that_is_refused_or_ignored() -> None:
    assert {*CHAT, *COMPLETIONS, *TOKENIZE, *DETOKENIZE, *IGNORED} <= NAMED


def test_every_error() -> None:
    rows = {tuple(cell.strip(" `") for cell in line.split("|")[1:4]) for line in PAGE.splitlines() if line[:1] == "|"}
    for kind in request_errors():
        assert (str(kind.status), kind.type, kind.code) in rows


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_pages_show_the_document(run, says, path) -> None:
    async def scenario(server) -> None:
        page = await server.client.get(path)
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert '"/openapi.json"' in page.text
        assert (await server.client.head(path)).status_code == 200

    run(scenario, says("x"))


def test_every_route(run, says) -> None:
    async def scenario(server) -> None:
        document = (await server.client.get("/openapi.json")).json()
        assert set(document["paths"]) <= {path.replace("{id}", "{model_id}") for path in NAMED}

    run(scenario, says("x"))
