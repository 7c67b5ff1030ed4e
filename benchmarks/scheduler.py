"""What the engine core itself costs in steady decode, for each running request and step: from the start of `schedule()`
to the `EngineCoreOutputs` that are ready to be encoded. The worker is one that answers at once.

Prefix caching is on, blocks have 16 tokens, every request has stop ids and max_tokens, and prompts differ in length,
so that in every step about one of 16 requests opens a block, which also names the block before it.
"""

from __future__ import annotations

import random
import statistics
import time

from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.contracts.engine import EngineCoreRequest
from headrace.contracts.model_runner import ModelRunnerOutput
from headrace.contracts.sampling_params import SamplingParams
from headrace.contracts.scheduler import SchedulerOutput
from headrace.core.engine_core import EngineCore
from headrace.core.executor.uniproc import Done

NUM_RUNNING = (8, 64, 256, 1024, 2048)
ROUNDS = 3
BLOCK_SIZE = 16
WARM_UP = 2 * BLOCK_SIZE
STEPS = 10 * BLOCK_SIZE  # every request grows 10 times
MAX_TOKENS = WARM_UP + STEPS + 64


class InstantExecutor:
    """Says what it is told to say."""

    def __init__(self, num_blocks: int) -> None:
        self.answer = ModelRunnerOutput([], [])
        self.step: SchedulerOutput | None = None
        self._num_blocks = num_blocks

    def load_model(self) -> None: ...

    def initialize_kv_cache(self) -> int:
        return self._num_blocks

    def memory_plan(self) -> str:
        return ""

    def execute_model(self, step: SchedulerOutput) -> Done[None]:
        self.step = step
        return Done(None)

    def sample_tokens(self) -> Done[ModelRunnerOutput]:
        return Done(self.answer)

    def shutdown(self) -> None: ...


def main() -> None:
    seconds: dict[int, list[float]] = {num_running: [] for num_running in NUM_RUNNING}
    for _ in range(ROUNDS):  # not one size after the other: a busy neighbour then disturbs all of them
        for num_running, measured in seconds.items():
            measured.extend(decode(num_running))
    for num_running, measured in seconds.items():
        median, p99 = (q * 1e6 for q in quantiles(measured))
        print(
            f"R {num_running:<5} per_step_us {median:7.1f}  per_request_us {median / num_running:5.2f}  "
            f"p99 {p99 / num_running:5.2f}"
        )


def quantiles(measured: list[float]) -> tuple[float, float]:
    """Median and 99th percentile."""
    return statistics.median(measured), sorted(measured)[len(measured) * 99 // 100]


def decode(num_running: int) -> list[float]:
    """Seconds of each step, without the worker."""
    config = resolve(
        EngineConfig(max_model_len=512, block_size=BLOCK_SIZE, max_num_seqs=num_running, max_num_batched_tokens=2**16)
    )
    executor = InstantExecutor(num_running * -(-(64 + MAX_TOKENS) // BLOCK_SIZE))
    core = EngineCore(config, executor)
    core.start()
    rng = random.Random(0)
    for i in range(num_running):
        prompt = [rng.randrange(3, 40000) for _ in range(20 + i % BLOCK_SIZE)]
        params = SamplingParams(max_tokens=MAX_TOKENS, seed=0, stop_token_ids=(1, 2))
        core.add_request(core.prepare(EngineCoreRequest(f"{rng.getrandbits(80):020x}-0", 0, prompt, [], params, 0.0)))
    seconds = []
    for step in range(1 + WARM_UP + STEPS):
        names = list(core.scheduler._requests)
        executor.answer = ModelRunnerOutput(names, [rng.randrange(3, 40000) for _ in names])
        began = time.perf_counter()
        outputs = core.step()
        took = time.perf_counter() - began
        assert len(outputs[0].outputs) == num_running
        if step > WARM_UP:
            assert executor.step is not None
            assert executor.step.total_num_scheduled_tokens == num_running
            seconds.append(took)
        del outputs  # as if they were encoded and sent
    return seconds


if __name__ == "__main__":
    main()
