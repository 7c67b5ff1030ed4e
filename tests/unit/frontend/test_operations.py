"""Routes for operators, OpenAPI, and the life of a server as its clients see it."""

from __future__ import annotations

import asyncio

import msgspec

from headrace.config.limits import Limits
from headrace.contracts.engine import EngineCoreOutput
from headrace.frontend.http.errors import ErrorBody
from headrace.frontend.http.field_docs import FIELDS, STRUCTS, bounds_of
from headrace.frontend.http.openai.protocol import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    ModelList,
)
from headrace.frontend.http.operations import Version
from headrace.frontend.http.tokenize import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from tests.metrics_snapshot import AS_EVER, described
from tests.unit.frontend.serving import Server


async def _status(server: Server, path: str) -> int:
    return (await server.client.get(path)).status_code


def _samples(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_request_that_comes_while_the_engine_loads_waits_for_it(run, says):
    async def scenario(server: Server) -> None:
        assert [await _status(server, path) for path in ("/live", "/health", "/ready")] == [200, 200, 503]
        assert (await server.client.get("/ready")).headers["retry-after"] == "5"
        waiting = asyncio.ensure_future(server.complete())
        await server.engine.until(lambda engine: engine.num_waiting == 1)
        server.engine.become_ready()
        assert (await waiting).json()["choices"][0]["text"] == "there"
        assert await _status(server, "/ready") == 200

    run(scenario, says("there"), is_ready=False)


def test_h09_draining_finishes_what_runs_and_refuses_what_comes(run, tokenizer):
    async def scenario(server: Server) -> None:
        server.engine.holds = lambda request: True
        running = asyncio.ensure_future(server.complete())
        await server.engine.until(lambda engine: bool(engine.requests))
        server.llm.start_draining()
        refused = await server.complete()
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "5"
        assert refused.json()["error"]["code"] == "service_unavailable"
        assert [await _status(server, path) for path in ("/live", "/health", "/ready")] == [200, 200, 503]
        (request,) = server.engine.requests.values()
        server.engine.answer(request)
        assert (await running).json()["choices"][0]["text"] == "done"
        await server.llm.wait_until_idle()

    run(scenario, lambda request: [*tokenizer.encode("done", add_special_tokens=False), 2])


def test_h07_when_the_engine_dies_every_request_hears_of_it(run):
    async def scenario(server: Server) -> None:
        server.engine.holds = lambda request: True
        whole = asyncio.ensure_future(server.complete())
        streamed = asyncio.ensure_future(server.chat(stream=True))
        await server.engine.until(lambda engine: len(engine.requests) == 2)
        stream_id = next(i for i, r in server.engine.requests.items() if len(r.prompt_token_ids) > 5)
        server.engine.send(EngineCoreOutput(stream_id, 0, [19556]))
        server.engine.die("The engine core has died.")
        assert (await whole).status_code == 500
        assert (await whole).json()["error"]["code"] == "engine_dead"
        events = (await streamed).text.strip().split("\n\n")
        assert '"content":"Hello"' in events[-2]
        assert events[-1].startswith('data: {"error":{"message":"The engine core has died."')
        assert (await server.complete()).json()["error"]["code"] == "engine_dead"
        assert [await _status(server, path) for path in ("/live", "/health", "/ready")] == [200, 503, 503]

    run(scenario)


def test_version_and_models(run):
    async def scenario(server: Server) -> None:
        assert (await server.client.get("/version")).json().keys() == {"version"}
        models = (await server.client.get("/v1/models")).json()
        assert models["object"] == "list"
        (model,) = models["data"]
        assert model["id"] == "demo"
        assert model["object"] == "model"
        assert model["max_model_len"] == 256

    run(scenario)


def test_j13_metric_names_types_labels_and_buckets_are_an_api(run, says):
    """As Prometheus reads them."""

    async def scenario(server: Server) -> None:
        await server.complete(n=2)
        response = await server.client.get("/metrics")
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert described(response.text, "demo") == AS_EVER

    run(scenario, says("Hello there"))


def test_metrics_count_what_happened(run, says):
    async def scenario(server: Server) -> None:
        await server.complete(n=2)
        samples = _samples((await server.client.get("/metrics")).text)
        assert samples['headrace:generation_tokens_total{model_name="demo"}'] == 6
        assert samples['headrace:request_success_total{finished_reason="stop",model_name="demo"}'] == 2
        assert samples['headrace:time_to_first_token_seconds_count{model_name="demo"}'] == 2
        assert samples['headrace:inter_token_latency_seconds_count{model_name="demo"}'] == 4
        assert samples['headrace:request_decode_time_seconds_count{model_name="demo"}'] == 2
        assert samples['headrace:request_time_per_output_token_seconds_count{model_name="demo"}'] == 2
        assert samples['headrace:request_generation_tokens_sum{model_name="demo"}'] == 6

    run(scenario, says("Hello there"))


def test_j11_a_request_without_a_first_token_leaves_no_time_to_it(run):
    async def scenario(server: Server) -> None:
        server.engine.holds = lambda request: True
        task = asyncio.ensure_future(server.complete())
        await server.engine.until(lambda engine: bool(engine.requests))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.llm.wait_until_idle()
        samples = _samples(server.llm.metrics.render().decode())
        assert samples['headrace:time_to_first_token_seconds_count{model_name="demo"}'] == 0
        assert samples['headrace:request_success_total{finished_reason="abort",model_name="demo"}'] == 1
        assert samples['headrace:num_requests_running{model_name="demo"}'] == 0

    run(scenario)


def test_openapi_describes_the_bodies(run):
    async def scenario(server: Server) -> None:
        document = (await server.client.get("/openapi.json")).json()
        post = document["paths"]["/v1/chat/completions"]["post"]
        body = post["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": "#/components/schemas/ChatCompletionRequest"}
        assert post["responses"]["200"]["content"].keys() == {"application/json", "text/event-stream"}
        assert post["responses"].keys() == {"200", "400", "404", "408", "413", "431", "500", "503"}
        n = document["components"]["schemas"]["ChatCompletionRequest"]["properties"]["n"]
        assert (n["minimum"], n["maximum"], n["anyOf"]) == (1, 128, [{"type": "integer"}, {"type": "null"}])

    run(scenario)


def test_openapi_has_words_for_every_route_struct_and_field(run):
    async def scenario(server: Server) -> None:
        document = (await server.client.get("/openapi.json")).json()
        assert all(operation["summary"] for path in document["paths"].values() for operation in path.values())
        for name, struct in document["components"]["schemas"].items():
            assert struct["description"], name
            for field, kind in struct["properties"].items():
                assert kind["description"].endswith("."), (name, field)

    run(scenario)


def test_openapi_names_no_field_that_there_is_not():
    """Words and bounds are by name: one that was renamed must not stay behind."""
    schemas = msgspec.json.schema_components([
        ChatCompletionRequest, ChatCompletion, ChatCompletionChunk, CompletionRequest, Completion, ModelList, Version,
        ErrorBody, TokenizeRequest, Tokenized, DetokenizeRequest, Detokenized,
    ])[1]  # fmt: skip
    fields = [(struct, field) for struct, schema in schemas.items() for field in schema["properties"]]
    names = {field for _, field in fields} | {f"{struct}.{field}" for struct, field in fields}
    bounds = bounds_of(Limits(vocab_size=10, max_model_len=10), ("demo",), has_priorities=True)
    assert FIELDS.keys() | bounds.keys() <= names
    assert STRUCTS.keys() <= schemas.keys()
