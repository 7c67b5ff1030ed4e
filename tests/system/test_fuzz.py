"""schemathesis against a real server, over the server's own /openapi.json. `make fuzz` sends forty times as many."""

from __future__ import annotations

import pytest

from tests.system.fuzzing import fuzz, labels
from tests.system.tiny_server import Postcondition, start_tiny_server

pytestmark = [pytest.mark.system, pytest.mark.slow]

POSTS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]
GETS = ["/v1/models", "/v1/models/{model_id}", "/live", "/health", "/ready", "/version", "/metrics"]
ROUTES = [f"POST {path}" for path in POSTS] + [f"{method} {path}" for path in GETS for method in ("GET", "HEAD")]


@pytest.fixture(scope="module")
def server(tiny_model):
    server = start_tiny_server(tiny_model, "--check-invariants")
    try:
        yield server.wait_ready()
    finally:
        server.close()


@pytest.fixture(scope="module")
def postcondition(server):
    return Postcondition(server)


def test_every_route_is_looked_at(server):
    assert sorted(labels(server.url)) == sorted(ROUTES)


@pytest.mark.parametrize("label", ROUTES)
def test_the_document_is_true(server, postcondition, label):
    ends = fuzz(server.url, label, num_examples=50)
    assert ends["positive 200"]
    if label.startswith("POST"):
        assert ends["positive 200"] > 50
        assert ends["negative 400"] > 50
    postcondition.check()
