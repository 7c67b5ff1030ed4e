"""Who gets in: API keys, how many requests, request ids, names of models."""

from __future__ import annotations

import asyncio

import httpx
import msgspec
import pytest

from headrace.config.address import API_KEY_VARIABLE
from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.errors import ConfigError
from tests.unit.frontend.serving import MAX_MODEL_LEN, Server, run_scenario, script_of

KEYS = ("first-key", "second-key")


@pytest.fixture
def run_guarded(config, input_processor, tokenizer):
    """Like `run`, with keys and room for one request that runs and one that waits."""
    guarded = resolve(
        EngineConfig(
            max_model_len=MAX_MODEL_LEN, served_model_name=("demo", "alias/of demo"), api_key=KEYS, max_num_seqs=1,
            max_queued_requests=1,
        )
    )  # fmt: skip

    def run(scenario):
        run_scenario(guarded, input_processor, scenario, script_of(tokenizer, ["there"]))

    return run


def with_key(key: str = KEYS[0]) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def routes_of(server: Server) -> list[tuple[str, str]]:
    """Every route of the table, as (method, path)."""
    routes = server.app._app._app.routes
    return [(method, route.path.replace("{model_id:path}", "demo")) for route in routes for method in route.methods]


def test_j01_every_route_is_closed_but_the_probes(run_guarded):
    async def scenario(server: Server) -> None:
        routes = routes_of(server)
        assert {("POST", "/v1/chat/completions"), ("GET", "/metrics"), ("GET", "/openapi.json")} <= set(routes)
        for method, path in routes:
            for spelling in (
                path,
                path.upper(),
                "/" + path,
                path + "/",
                path + "%2f",
                path + "?key",
            ):
                response = await server.client.request(method, httpx.URL(f"http://server{spelling}"))
                is_open = spelling.partition("?")[0] in ("/live", "/health", "/ready")
                assert (response.status_code != 401) == is_open, spelling
                if not is_open and method != "HEAD":
                    error = response.json()["error"]
                    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
                    assert response.headers["www-authenticate"] == "Bearer"
        assert not server.engine.seen

    run_guarded(scenario)


@pytest.mark.parametrize(
    "header", ["Bearer first-ke", "Bearer first-key2", "Bearer", "Bearer ", "first-key", "Basic first-key", "Bearer é"]
)
def test_a_key_must_be_right(run_guarded, header):
    async def scenario(server: Server) -> None:
        response = await server.client.get("/v1/models", headers={"authorization": header.encode()})
        assert response.status_code == 401

    run_guarded(scenario)


def test_two_keys_at_once_are_none(run_guarded):
    async def scenario(server: Server) -> None:
        headers = [("authorization", "Bearer wrong"), ("authorization", "Bearer first-key")]
        assert (await server.client.get("/v1/models", headers=headers)).status_code == 401

    run_guarded(scenario)


@pytest.mark.parametrize("header", ["Bearer first-key", "bearer second-key", "BEARER  second-key"])
def test_each_key_opens_everything(run_guarded, header):
    async def scenario(server: Server) -> None:
        answer = await server.client.post("/v1/completions", json={"prompt": "Hi"}, headers={"authorization": header})
        assert answer.json()["choices"][0]["text"] == "there"

    run_guarded(scenario)


def test_keys_come_from_the_environment_too_and_are_kept_as_digests(monkeypatch):
    monkeypatch.setenv(API_KEY_VARIABLE, "of-the-environment another")
    settings = resolve(EngineConfig(host="0.0.0.0", api_key=("of-the-flag",)))
    assert len(settings.server.api_key_digests) == 3
    everything = msgspec.json.encode(settings) + repr(settings).encode()
    assert not any(key in everything for key in (b"of-the-environment", b"another", b"of-the-flag"))


@pytest.mark.parametrize("key", ["", "two words", "ключ", "line\n"])
def test_a_key_that_no_header_can_carry_is_refused(key):
    with pytest.raises(ConfigError, match="--api-key"):
        resolve(EngineConfig(api_key=(key,)))


def test_requests_beyond_what_may_wait_are_told_to_come_back(run_guarded):
    async def scenario(server: Server) -> None:
        server.client.headers.update(with_key())
        server.engine.holds = lambda request: True
        held = [asyncio.ensure_future(server.complete()) for _ in range(2)]
        await server.engine.until(lambda engine: len(engine.requests) == 2)
        refused = await server.complete(stream=True)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "overloaded"
        for request in list(server.engine.requests.values()):
            server.engine.answer(request)
        assert [(await one).status_code for one in held] == [200, 200]
        server.engine.holds = lambda request: False
        assert (await server.complete()).status_code == 200

    run_guarded(scenario)


def test_every_name_of_the_model_works_and_answers_have_the_first(run_guarded):
    async def scenario(server: Server) -> None:
        server.client.headers.update(with_key())
        cards = (await server.client.get("/v1/models")).json()["data"]
        assert [card["id"] for card in cards] == ["demo", "alias/of demo"]
        for card in cards:
            assert (await server.client.get(f"/v1/models/{card['id']}")).json() == card
            assert (await server.complete(model=card["id"])).json()["model"] == "demo"
        for response in (await server.client.get("/v1/models/other"), await server.complete(model="other")):
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "model_not_found"

    run_guarded(scenario)


@pytest.mark.parametrize("path", ["/live", "/v1/models", "/nowhere", "/metrics"])
def test_an_answer_has_the_clients_request_id_or_one_of_ours(run_guarded, path):
    async def scenario(server: Server) -> None:
        response = await server.client.get(path, headers={"x-request-id": "abc-123"})
        assert response.headers.get_list("x-request-id") == ["abc-123"]
        ours = set()
        for bad in ({}, {"x-request-id": "x" * 129}, {"x-request-id": "two words"}, {"x-request-id": b"\xff"}):
            ours.add((await server.client.get(path, headers=bad)).headers["x-request-id"])
        assert len(ours) == 4
        assert all(len(request_id) == 32 for request_id in ours)

    run_guarded(scenario)


def test_a_failure_of_ours_has_the_request_id_too(run, says, monkeypatch):
    async def scenario(server: Server) -> None:
        monkeypatch.setattr(server.llm, "prepare", None)
        response = await server.client.post(
            "/v1/completions", json={"prompt": "Hi"}, headers={"x-request-id": "abc-123"}
        )
        assert (response.status_code, response.headers["x-request-id"]) == (500, "abc-123")

    run(scenario, says("there"))


def test_openapi_says_where_a_key_is_needed(run_guarded):
    async def scenario(server: Server) -> None:
        document = (await server.client.get("/openapi.json", headers=with_key())).json()
        assert document["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            for operation in operations.values():
                assert ("security" in operation) == ("401" in operation["responses"])
                assert ("security" in operation) != (path in ("/live", "/health", "/ready"))

    run_guarded(scenario)
