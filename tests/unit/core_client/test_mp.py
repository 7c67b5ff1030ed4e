"""`AsyncMPClient` against an engine core that is played by the test, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import zmq

from headrace.contracts.codec import handshake_codec, init_codec, outputs_codec, utility_codec
from headrace.contracts.engine import (
    PROTOCOL_VERSION,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
    UtilityOutput,
)
from headrace.contracts.lifecycle import EngineCoreReadyResponse, EngineHello
from headrace.contracts.sampling_params import SamplingParams
from headrace.errors import EngineDeadError, EngineError
from headrace.frontend.core_client.mp import AsyncMPClient
from headrace.ipc.sockets import connect

INCARNATION = 77
HELLO = handshake_codec().encode(EngineHello(PROTOCOL_VERSION, 0, INCARNATION))
READY = handshake_codec().encode(EngineCoreReadyResponse(0, INCARNATION, 10, 16, 99))
REQUEST = EngineCoreRequest("r", 0, [1], [], SamplingParams(), 0.0)


class PlayedEngine:
    """The engine core's side: a DEALER to the client's ROUTER, a PUSH to where it says that outputs go."""

    def __init__(self, context: zmq.Context, client: AsyncMPClient) -> None:
        self.context = context
        self.input = connect(context, zmq.DEALER, client.endpoint, identity=b"engine-0")

    async def receive(self) -> tuple[bytes, bytes]:
        while not self.input.poll(0):
            await asyncio.sleep(0.001)
        kind, payload = self.input.recv_multipart()
        return kind, payload

    async def greet(self) -> None:
        self.input.send(HELLO)
        kind, payload = await self.receive()
        assert kind == EngineCoreRequestType.INIT
        self.output = connect(self.context, zmq.PUSH, init_codec().decode(payload).outputs)
        self.input.send(READY)

    def say(self, output: EngineCoreOutputs) -> None:
        self.output.send(outputs_codec().encode(output))

    def close(self) -> None:
        self.input.close()
        if hasattr(self, "output"):
            self.output.close()


def play(tmp_path, script: Callable[[AsyncMPClient, PlayedEngine], Awaitable[None]]) -> None:
    async def run() -> None:
        client = AsyncMPClient(tmp_path, client_index=0, transport="unix")
        with zmq.Context() as context:
            engine = PlayedEngine(context, client)
            try:
                async with asyncio.timeout(30):
                    await script(client, engine)
            finally:
                engine.close()
                client.shutdown()

    asyncio.run(run())


def outputs(request_id: str, incarnation: int = INCARNATION) -> EngineCoreOutputs:
    return EngineCoreOutputs(0, incarnation, [EngineCoreOutput(request_id, 0, [5])])


def test_handshake_request_abort_output(tmp_path):
    async def script(client, engine):
        await engine.greet()
        assert (await client.wait_ready()).num_kv_blocks == 10
        assert client.ready is not None
        client.add_request(REQUEST)
        client.abort_requests(["r"])
        assert (await engine.receive())[0] == EngineCoreRequestType.ADD
        assert (await engine.receive())[0] == EngineCoreRequestType.ABORT
        engine.say(outputs("r"))
        assert (await client.get_output()).outputs[0].request_id == "r"

    play(tmp_path, script)


def test_foreign_bytes_are_dropped_and_what_follows_is_read(tmp_path):
    """In one burst: the sockets signal only once for all of it."""

    async def script(client, engine):
        for garbage in (b"", b"\xc1", b"\x91" * 5000, b"hello"):
            engine.input.send(garbage)
        engine.input.send_multipart([b"a", b"b", b"c"])
        await engine.greet()
        await client.wait_ready()
        engine.output.send(b"\xff\xff")
        engine.output.send(b"")
        engine.say(outputs("good"))
        assert (await client.get_output()).outputs[0].request_id == "good"

    play(tmp_path, script)


def test_another_protocol_is_a_dead_engine_and_no_hang(tmp_path):
    async def script(client, engine):
        engine.input.send(handshake_codec().encode(EngineHello(PROTOCOL_VERSION + 1, 0, INCARNATION)))
        with pytest.raises(EngineDeadError, match=f"speaks protocol {PROTOCOL_VERSION + 1}"):
            await client.wait_ready()
        with pytest.raises(EngineDeadError):
            await client.get_output()

    play(tmp_path, script)


def test_outputs_of_another_incarnation_are_dropped(tmp_path):
    async def script(client, engine):
        await engine.greet()
        engine.say(outputs("old", INCARNATION - 1))
        engine.say(outputs("new"))
        assert (await client.get_output()).outputs[0].request_id == "new"

    play(tmp_path, script)


def test_death_is_heard_by_everybody_who_waits(tmp_path):
    async def script(client, engine):
        await engine.greet()
        await client.wait_ready()
        waiting = [asyncio.ensure_future(client.get_output()), asyncio.ensure_future(client.call_utility("x"))]
        await engine.receive()
        client.mark_dead("gone")
        for wait in waiting:
            with pytest.raises(EngineDeadError, match="gone"):
                await wait
        with pytest.raises(EngineDeadError):
            client.add_request(REQUEST)
        with pytest.raises(EngineDeadError):
            await client.get_output()
        client.abort_requests(["r"])  # harmless

    play(tmp_path, script)


def test_an_engine_that_hung_up_is_not_a_message_lost_in_silence(tmp_path):
    async def script(client, engine):
        await engine.greet()
        await client.wait_ready()
        engine.input.close()

        async def send_until_it_fails() -> None:
            while True:
                client.add_request(REQUEST)
                await asyncio.sleep(0.001)

        with pytest.raises(EngineDeadError):
            await send_until_it_fails()

    play(tmp_path, script)


@pytest.mark.parametrize("failure", [None, "it failed"])
def test_utility_calls(tmp_path, failure):
    async def script(client, engine):
        await engine.greet()
        await client.wait_ready()
        waiting = asyncio.ensure_future(client.call_utility("reset_prefix_cache"))
        kind, payload = await engine.receive()
        call = utility_codec().decode(payload)
        assert (kind, call.method) == (EngineCoreRequestType.UTILITY, "reset_prefix_cache")
        answer = UtilityOutput(call.call_id, failure, None if failure else True)
        engine.say(EngineCoreOutputs(0, INCARNATION, [], None, 0.0, answer))
        if failure is None:
            assert await waiting is True
        else:
            with pytest.raises(EngineError, match=failure):
                await waiting

    play(tmp_path, script)
