"""The bytes of every contract. A changed byte here means that a peer of another version reads something else: structs
only grow at their end, by fields with defaults."""

from __future__ import annotations

import msgspec
import pytest

from headrace.contracts import codec
from headrace.contracts.engine import (
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
    FinishReason,
    UtilityCall,
    UtilityOutput,
)
from headrace.contracts.lifecycle import (
    ChildFailed,
    ChildReady,
    ConnectTo,
    Drain,
    Endpoint,
    EngineCoreReadyResponse,
    EngineHello,
    EngineInit,
    Listening,
    PeerDied,
    Phase,
    Report,
)
from headrace.contracts.model_runner import ModelRunnerOutput, TokenLogprobs
from headrace.contracts.sampling_params import OutputKind, SamplingParams
from headrace.contracts.scheduler import CachedRequestData, NewRequestData, SchedulerOutput
from headrace.contracts.stats import SchedulerStats
from headrace.errors import ProtocolError

PARAMS = SamplingParams(
    n=2,
    temperature=0.5,
    top_p=0.75,
    top_k=5,
    min_p=0.25,
    seed=7,
    stop=("x",),
    stop_token_ids=(3,),
    max_tokens=9,
    ignore_eos=True,
    skip_special_tokens=False,
    detokenize=True,
    output_kind=OutputKind.DELTA,
    include_stop_str_in_output=True,
    min_tokens=4,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    repetition_penalty=1.5,
    logit_bias={8: -1.5},
    allowed_token_ids=(8, 9),
    logprobs=2,
    bad_words=("w",),
    bad_token_ids=((8, 9),),
    prompt_logprobs=3,
)
NEW = NewRequestData("r", [1], [2], SamplingParams(), [[4]], 0)
STATS = SchedulerStats(1, 2, 0.5, 4, 5, 6, 7, 1.5)
EVENTS = [EngineCoreEvent(EngineCoreEventType.SCHEDULED, 1.5)]
LOGPROBS = TokenLogprobs(-0.5, 2, b"\x08\x00\x00\x00", b"\x00\x00\x80\xbe")
OUTPUT = EngineCoreOutput("r", 1, [5], FinishReason.STOP, 5, 3, "m", "c", EVENTS, [LOGPROBS], [LOGPROBS])

GOLDEN = [
    (
        PARAMS,
        "dc001802cb3fe0000000000000cb3fe800000000000005cb3fd00000000000000791a178910309c3c2c301c304cb3fe0"
        "000000000000cbbfe0000000000000cb3ff80000000000008108cbbff80000000000009208090291a1779192080903",
    ),
    (
        EngineCoreRequest("r", 0, [1, 2], [3], SamplingParams(seed=1, max_tokens=4), 1.5, 2, "s"),
        "98a172009201029103dc001801cb3ff0000000000000cb3ff000000000000000cb000000000000000001909004c2c3c3"
        "00c200cb0000000000000000cb0000000000000000cb3ff0000000000000c0c0c09090c0cb3ff800000000000002a173",
    ),
    (
        OUTPUT,
        "9ba172019105000503a16da163919201cb3ff80000000000009194cbbfe000000000000002c40408000000c404000080"
        "be9194cbbfe000000000000002c40408000000c404000080be",
    ),
    (
        EngineCoreOutputs(1, 2, [OUTPUT], STATS, 2.5, UtilityOutput(4, "f", True)),
        "960102919ba172019105000503a16da163919201cb3ff80000000000009194cbbfe000000000000002c40408000000c4"
        "04000080be9194cbbfe000000000000002c40408000000c404000080be980102cb3fe000000000000004050607cb3ff8"
        "000000000000cb40040000000000009304a166c3",
    ),
    (UtilityCall(1, 2, "m"), "930102a16d"),
    (STATS, "980102cb3fe000000000000004050607cb3ff8000000000000"),
    (
        NEW,
        "96a17291019102dc001801cb3ff0000000000000cb3ff000000000000000cb0000000000000000c09090c0c2c3c300c2"
        "00cb0000000000000000cb0000000000000000cb3ff0000000000000c0c0c09090c091910400",
    ),
    (
        SchedulerOutput(8, [], CachedRequestData(["r"], [[[2]]]), {"r": 1}, 1, ["p"], ["f"]),
        "97089092" + "91a172" + "91919102" + "81a17201" + "01" + "91a170" + "91a166",
    ),
    (LOGPROBS, "94cbbfe000000000000002c40408000000c404000080be"),
    (
        ModelRunnerOutput(["r"], [6], {"r": LOGPROBS}, {"r": [LOGPROBS]}),
        "9491a172910681a17294cbbfe000000000000002c40408000000c404000080be81a1729194cbbfe000000000000002c4"
        "0408000000c404000080be",
    ),
    (EngineHello(1, 0, 9), "94a568656c6c6f010009"),
    (EngineInit(0, Endpoint("a", "k")), "920092a161a16b"),
    (EngineCoreReadyResponse(0, 9, 10, 16, 99), "96a5726561647900090a1063"),
    (Phase("p", "n", 0.5, 1.5), "95a57068617365a170a16ecb3fe0000000000000cb3ff8000000000000"),
    (Report("t"), "92a67265706f7274a174"),
    (ChildReady(), "91ab6368696c645f7265616479"),
    (ChildFailed("m"), "92ac6368696c645f6661696c6564a16d"),
    (Listening(Endpoint("a")), "92a96c697374656e696e6792a161c0"),
    (Drain(1.0), "92a5647261696ecb3ff0000000000000"),
    (PeerDied("m"), "92a9706565725f64696564a16d"),
    (ConnectTo(Endpoint("a")), "92aa636f6e6e6563745f746f92a161c0"),
]


@pytest.mark.parametrize(("message", "expected"), GOLDEN, ids=[type(m).__name__ for m, _ in GOLDEN])
def test_bytes(message, expected):
    data = msgspec.msgpack.encode(message)
    assert data.hex() == expected
    assert msgspec.msgpack.decode(data, type=type(message)) == message


def test_request_kinds():
    assert {kind.name: bytes(kind) for kind in EngineCoreRequestType} == {
        "ADD": b"\x00",
        "ABORT": b"\x01",
        "UTILITY": b"\x02",
        "INIT": b"\x03",
    }


# What senders wrote before fields were appended, since version 0.1.0's first. Never edited, only added to.
OLDER = [
    (SamplingParams, "9e02cb3fe0000000000000cb3fe800000000000005cb3fd00000000000000791a178910309c3c2c301c3"),
    (EngineCoreOutput, "98a172019105000503a16da163"),
    (SchedulerStats, "970102cb3fe000000000000004050607"),
    (SamplingParams, "9f02cb3fe0000000000000cb3fe800000000000005cb3fd00000000000000791a178910309c3c2c301c304"),
    (EngineCoreOutput, "99a172019105000503a16da163919201cb3ff8000000000000"),
    (ModelRunnerOutput, "9291a1729106"),
    (
        SamplingParams,
        "dc001502cb3fe0000000000000cb3fe800000000000005cb3fd00000000000000791a178910309c3c2c301c304cb3fe0"
        "000000000000cbbfe0000000000000cb3ff80000000000008108cbbff800000000000092080902",
    ),
]


@pytest.mark.parametrize(("kind", "data"), OLDER, ids=[kind.__name__ for kind, _ in OLDER])
def test_an_older_sender_is_understood(kind, data):
    """Fields that were appended later get their defaults."""
    message = msgspec.msgpack.decode(bytes.fromhex(data), type=kind)
    newer = next(m for m, _ in GOLDEN if type(m) is kind)
    defaults = {f.name: f.default for f in msgspec.structs.fields(kind)}
    for name in kind.__struct_fields__:
        assert getattr(message, name) in (getattr(newer, name), defaults[name])


@pytest.mark.parametrize("make", [codec.request_codec, codec.outputs_codec, codec.handshake_codec, codec.abort_codec])
@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x93\x01", b"\xff" * 64, b"\x91" * 3000 + b"\x00", b"\xa5hello", b"\xdd\xff\xff\xff\xff"],
    ids=["empty", "reserved", "cut", "ff", "deep", "text", "huge"],
)
def test_foreign_bytes_are_refused(make, data):
    with pytest.raises(ProtocolError):
        make().decode(data)
