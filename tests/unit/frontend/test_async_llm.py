"""`AsyncLLM` as its callers see it: streams, aborts, and clients that go away."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import msgspec
import pytest

from headrace.contracts.engine import EngineCoreOutput, FinishReason
from headrace.contracts.sampling_params import OutputKind, SamplingParams
from headrace.errors import EngineDeadError, InvalidParameterError
from headrace.frontend.http.merge import merge
from tests.unit.frontend.serving import Server, run_scenario

DELTA = SamplingParams(output_kind=OutputKind.DELTA)


def test_generate_streams_to_the_end(run, says):
    async def scenario(server: Server) -> None:
        outputs = [output async for output in server.llm.generate("Hi", SamplingParams(), "label")]
        assert outputs[-1].outputs[0].text == "Hello there"
        assert outputs[-1].finished
        assert {output.request_id for output in outputs} == {"label"}
        assert not server.engine.aborted

    run(scenario, says("Hello there"))


def test_a_refused_request_raises_at_once(run):
    async def scenario(server: Server) -> None:
        with pytest.raises(InvalidParameterError):
            await anext(server.llm.generate("", SamplingParams()))

    run(scenario)


def test_h01_closing_the_generator_aborts_every_choice(run):
    async def scenario(server: Server) -> None:
        server.engine.holds = lambda request: True
        prepared = await server.llm.prepare("Hi", SamplingParams(n=2, output_kind=OutputKind.DELTA))
        first, second = (request.request_id for request in prepared.core_requests)
        async with aclosing(server.llm.generate(prepared)) as outputs:
            waiting = asyncio.ensure_future(anext(outputs))
            await server.engine.until(lambda engine: len(engine.requests) == 2)
            server.engine.send(EngineCoreOutput(first, 0, [40]))
            await waiting
        assert server.engine.aborted == [first, second]

    run(scenario)


def test_h01_cancelling_the_task_that_waits_aborts(run):
    async def scenario(server: Server) -> None:
        server.engine.holds = lambda request: True
        waiting = asyncio.ensure_future(anext(server.llm.generate("Hi", DELTA)))
        await server.engine.until(lambda engine: bool(engine.requests))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert len(server.engine.aborted) == 1

    run(scenario)


@pytest.mark.parametrize("chunk_size", [1, 32, 128])
def test_p13_a_wide_step_is_taken_in_by_chunks_and_readers_have_their_turn_between(config, input_processor, chunk_size):
    """100 outputs in one step: the readers of the first chunk have their news before the second is looked at."""
    width, num_woken = 100, []

    async def scenario(server: Server) -> None:
        server.engine.holds = lambda request: True
        take_in = server.llm._output_processor.process_outputs

        def count_then_take_in(outputs, stats):
            num_woken.append(sum(reader.done() for reader in readers))
            return take_in(outputs, stats)

        server.llm._output_processor.process_outputs = count_then_take_in
        streams = [server.llm.generate([40], DELTA) for _ in range(width)]
        readers = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await server.engine.until(lambda engine: len(engine.requests) == width)
        server.engine.send(*(EngineCoreOutput(request_id, 0, [40]) for request_id in server.engine.requests))
        await asyncio.gather(*readers)
        assert all(reader.result().outputs[0].token_ids == [40] for reader in readers)
        assert num_woken == list(range(0, width, chunk_size))
        for stream in streams:
            await stream.aclose()

    server_config = msgspec.structs.replace(config.server, output_chunk_size=chunk_size)
    run_scenario(msgspec.structs.replace(config, server=server_config), input_processor, scenario, lambda request: ())


def test_shutting_down_ends_every_stream(run):
    async def scenario(server: Server) -> None:
        server.engine.holds = lambda request: True
        waiting = asyncio.ensure_future(anext(server.llm.generate("Hi", DELTA)))
        await server.engine.until(lambda engine: bool(engine.requests))
        server.llm.shutdown()
        with pytest.raises(EngineDeadError):
            await waiting

    run(scenario)


def test_a_fault_in_the_output_handler_ends_every_stream(run, caplog):
    async def scenario(server: Server) -> None:
        server.engine.holds = lambda request: True
        waiting = asyncio.ensure_future(anext(server.llm.generate("Hi", DELTA)))
        await server.engine.until(lambda engine: bool(engine.requests))
        (request_id,) = server.engine.requests
        server.engine.send(EngineCoreOutput(request_id, "0", [40]))  # type: ignore[arg-type]
        with pytest.raises(EngineDeadError, match="cannot read"):
            await waiting
        assert server.llm.is_dead

    run(scenario)


# ---- clients that go away, at the level of ASGI


class Connection:
    """One HTTP request over ASGI whose client hangs up when the test says so."""

    def __init__(self, server: Server, path: str, body: bytes) -> None:
        self.sent: list[dict] = []
        self._hung_up = asyncio.Event()
        self._got_more = asyncio.Event()
        self._incoming = [{"type": "http.request", "body": body, "more_body": False}]
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "scheme": "http",
            "headers": [(b"content-type", b"application/json")], "client": ("test", 1), "server": ("test", 80),
        }  # fmt: skip
        self.takes = asyncio.Event()  # whether the client reads
        self.takes.set()
        self.task = asyncio.ensure_future(server.app(scope, self._receive, self._send))

    def hang_up(self) -> None:
        self._hung_up.set()

    async def until_sent(self, num_messages: int) -> None:
        while len(self.sent) < num_messages:
            self._got_more.clear()
            await self._got_more.wait()

    async def _receive(self) -> dict:
        if self._incoming:
            return self._incoming.pop(0)
        await self._hung_up.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict) -> None:
        await self.takes.wait()
        self.sent.append(message)
        self._got_more.set()


@pytest.mark.parametrize("stream", [b"true", b"false"])
@pytest.mark.parametrize("prompt", [b'"Hi"', b'["Hi", "there"]'])
def test_h01_a_client_that_goes_away_before_the_first_token_ends_its_request(run, stream, prompt):
    async def scenario(server: Server) -> None:
        server.engine.holds = lambda request: True
        body = b'{"prompt": ' + prompt + b', "stream": ' + stream + b"}"
        connection = Connection(server, "/v1/completions", body)
        width = 1 + prompt.count(b",")
        await server.engine.until(lambda engine: len(engine.requests) == width)
        connection.hang_up()
        await server.engine.until(lambda engine: len(engine.aborted) == width)
        await connection.task

    run(scenario)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_h01_a_client_that_goes_away_in_mid_stream_ends_its_request(run, path):
    async def scenario(server: Server) -> None:
        server.engine.holds = lambda request: True
        body = b'{"prompt": "Hi", "messages": [{"role": "user", "content": "Hi"}], "stream": true}'
        connection = Connection(server, path, body)
        await server.engine.until(lambda engine: bool(engine.requests))
        (request_id,) = server.engine.requests
        server.engine.send(EngineCoreOutput(request_id, 0, [40]))
        await connection.until_sent(2)
        connection.hang_up()
        await server.engine.until(lambda engine: engine.aborted == [request_id])
        await connection.task
        assert not any(b"DONE" in message.get("body", b"") for message in connection.sent)

    run(scenario)


def test_h01_a_client_that_goes_away_while_the_engine_loads_is_forgotten(run):
    async def scenario(server: Server) -> None:
        connection = Connection(server, "/v1/completions", b'{"prompt": "Hi"}')
        await server.engine.until(lambda engine: engine.num_waiting == 1)
        connection.hang_up()
        await connection.task
        await server.llm.wait_until_idle()
        server.engine.become_ready()
        assert not server.engine.seen

    run(scenario, is_ready=False)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_what_waits_for_a_client_that_does_not_read_is_one_event(run, tokenizer, path):
    """The engine goes on, and nothing piles up: all that came meanwhile is merged."""
    (token,) = tokenizer.encode(" word", add_special_tokens=False)
    num_tokens = 200

    async def scenario(server: Server) -> None:
        server.engine.holds = lambda request: True
        body = {
            "prompt": "Hi",
            "messages": [{"role": "user", "content": "Hi"}],
            "stream": True,
            "max_tokens": num_tokens,
        }
        connection = Connection(server, path, json.dumps(body).encode())
        await server.engine.until(lambda engine: bool(engine.requests))
        (request,) = server.engine.requests.values()
        connection.takes.clear()
        server.engine.answer(request)
        while server.llm.metrics.totals[1] < num_tokens:
            await asyncio.sleep(0)
        assert not connection.sent
        connection.takes.set()
        await connection.task
        data = b"".join(message.get("body", b"") for message in connection.sent)
        texts = [piece for event in data.split(b"\n\n") if (piece := text_of(event))]
        assert "".join(texts) == " word" * num_tokens
        assert len(texts) <= 2  # what was being sent, and the rest

    run(scenario, lambda request: [token] * num_tokens)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_what_there_is_to_say_at_one_time_is_one_message(run, path):
    """A packet costs both sides more than an event: the last one has the usage, `[DONE]` and the end of the body."""

    async def scenario(server: Server) -> None:
        server.engine.holds = lambda request: True
        body = {"prompt": "Hi", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        connection = Connection(server, path, json.dumps(body | {"stream_options": {"include_usage": True}}).encode())
        await server.engine.until(lambda engine: bool(engine.requests))
        (request_id,) = server.engine.requests
        server.engine.send(EngineCoreOutput(request_id, 0, [40]))
        await connection.until_sent(2)
        server.engine.send(EngineCoreOutput(request_id, 1, [41], FinishReason.LENGTH))
        await connection.task
        _, first, last = connection.sent
        assert first["more_body"]
        assert not last["more_body"]
        *_, finish, usage, done, nothing = last["body"].split(b"\n\n")
        assert b'"finish_reason":"length"' in finish
        assert b'"completion_tokens":2' in usage
        assert (done, nothing) == (b"data: [DONE]", b"")

    run(scenario)


def text_of(event: bytes) -> str:
    """What an event of a stream has of the text."""
    if not event or event.endswith(b"[DONE]"):
        return ""
    (choice,) = json.loads(event[6:])["choices"]
    return choice["text"] if "text" in choice else choice["delta"].get("content", "")


# ---- merging


async def _count(name: str, stop: int, closed: list[str]):
    try:
        for number in range(stop):
            await asyncio.sleep(0)
            yield f"{name}{number}"
    finally:
        closed.append(name)


def test_merged_streams_keep_their_order_and_are_closed():
    async def scenario() -> None:
        closed: list[str] = []
        items = [item async for item in merge([_count("a", 3, closed), _count("b", 2, closed)])]
        assert [item for place, item in items if place == 0] == ["a0", "a1", "a2"]
        assert [item for place, item in items if place == 1] == ["b0", "b1"]
        assert sorted(closed) == ["a", "b"]
        closed.clear()
        async with aclosing(merge([_count("a", 99, closed), _count("b", 99, closed)])) as merged:
            await anext(merged)
        assert sorted(closed) == ["a", "b"]

    asyncio.run(scenario())


def test_the_first_error_ends_a_merged_stream():
    async def failing():
        yield "x"
        raise InvalidParameterError("no")

    async def scenario() -> None:
        closed: list[str] = []
        with pytest.raises(InvalidParameterError):
            async for _ in merge([_count("a", 10**9, closed), failing()]):
                pass
        assert closed == ["a"]

    asyncio.run(scenario())
