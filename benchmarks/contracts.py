"""A step's outputs on their way from the engine core to the front end: encode in B and decode in A."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

from headrace.contracts.codec import Codec, outputs_codec, request_codec
from headrace.contracts.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from headrace.contracts.sampling_params import SamplingParams
from headrace.contracts.stats import SchedulerStats

NUM_OUTPUTS = 256
REPEATS = 300


def main() -> None:
    rng = random.Random(0)
    measure(f"step of {NUM_OUTPUTS} outputs", outputs_codec, step_outputs(rng, num_ending=0))
    measure("the same, all ending", outputs_codec, step_outputs(rng, num_ending=NUM_OUTPUTS))
    for length in (100, 10_000):
        measure(f"request of {length} tokens", request_codec, request(rng, length))


def step_outputs(rng: random.Random, *, num_ending: int) -> EngineCoreOutputs:
    outputs = [
        EngineCoreOutput(f"{rng.getrandbits(80):020x}-0", rng.randrange(2000), [rng.randrange(49152)])
        for _ in range(NUM_OUTPUTS)
    ]
    for output in outputs[:num_ending]:
        output.finish_reason = FinishReason.STOP
    stats = SchedulerStats(NUM_OUTPUTS, 3, 0.5, 10**6, 10**5, 17, 123_456, 0.25)
    return EngineCoreOutputs(0, rng.getrandbits(62), outputs, stats, time.time())


def request(rng: random.Random, length: int) -> EngineCoreRequest:
    prompt = [rng.randrange(49152) for _ in range(length)]
    params = SamplingParams(max_tokens=100, seed=rng.getrandbits(62), stop_token_ids=(1, 2))
    return EngineCoreRequest(f"{rng.getrandbits(80):020x}-0", 0, prompt, [], params, time.time())


def measure(what: str, codec: Callable[[], Codec], message: object) -> None:
    sender, receiver = codec(), codec()
    data = sender.encode(message)
    assert receiver.decode(data) == message
    encode, decode = [], []
    for _ in range(REPEATS):
        began = time.perf_counter()
        data = sender.encode(message)
        encoded = time.perf_counter()
        received = receiver.decode(data)
        decode.append(time.perf_counter() - encoded)
        encode.append(encoded - began)
        del received
    both = [e + d for e, d in zip(encode, decode, strict=True)]
    print(
        f"{what:<24} encode_us {us(encode):7.1f}  decode_us {us(decode):7.1f}  "
        f"round_trip_us {us(both):7.1f}  bytes {len(data)}",
        flush=True,
    )


def us(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e6


if __name__ == "__main__":
    main()
