"""What the engine core itself costs in steady decode, for each running request and step: from the start of `schedule()`
to the `EngineCoreOutputs` that are ready to be encoded. The worker is one that answers at once.

Prefix caching is on, blocks have 16 tokens, every request has stop ids and max_tokens, and prompts differ in length,
so that in every step about one of 16 requests opens a block, which also names the block before it.

`per_request_us` is the median of steps that follow each other at once. Between two steps of a real engine lies a
forward pass, which reads all weights and leaves nothing of the scheduler in the processor's caches: `after_forward` is
the same with a block of memory larger than they are read before each step. The sizes take turns, so that a busy
neighbour disturbs all of them alike.
"""

from __future__ import annotations

import random
import statistics
import time

import numpy as np

from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.contracts.engine import EngineCoreRequest
from headrace.contracts.model_runner import ModelRunnerOutput
from headrace.contracts.sampling_params import SamplingParams
from headrace.contracts.scheduler import SchedulerOutput
from headrace.core.engine_core import EngineCore
from headrace.core.engine_core_proc import YOUNG
from headrace.core.executor.uniproc import Done
from headrace.ipc.collector import calm_collector

NUM_RUNNING = (8, 64, 256, 1024, 2048)
BLOCK_SIZE = 16
NUM_TURNS = 6
STEPS = BLOCK_SIZE + 2  # of half a turn: every request grows
WEIGHTS = np.ones(64 * 2**20 // 8)
LONGEST_PROMPT = 200 + BLOCK_SIZE
MAX_TOKENS = 2 * (NUM_TURNS + 2) * STEPS


class InstantExecutor:
    """Says what it is told to say."""

    def __init__(self, num_blocks: int) -> None:
        self.answer = ModelRunnerOutput([], [])
        self._num_blocks = num_blocks

    def load_model(self) -> None: ...

    def initialize_kv_cache(self) -> int:
        return self._num_blocks

    def memory_plan(self) -> str:
        return ""

    def execute_model(self, step: SchedulerOutput) -> Done[None]:
        return Done(None)

    def sample_tokens(self) -> Done[ModelRunnerOutput]:
        return Done(self.answer)

    def shutdown(self) -> None: ...


class Decoding:
    """An engine core with so many requests in steady decode."""

    def __init__(self, num_running: int) -> None:
        self.num_running = num_running
        self.swept: list[float] = []  # of each step after a forward
        self.warm: list[float] = []  # and of each after another step
        limits = EngineConfig(
            max_model_len=1024, block_size=BLOCK_SIZE, max_num_seqs=num_running, max_num_batched_tokens=2**19
        )
        self._executor = InstantExecutor(num_running * -(-(LONGEST_PROMPT + MAX_TOKENS) // BLOCK_SIZE))
        self._core = EngineCore(resolve(limits), self._executor)
        self._core.start()
        self._rng = random.Random(0)
        for i in range(num_running):
            self._core.add_request(self._core.prepare(self._request(LONGEST_PROMPT - i % BLOCK_SIZE)))
        self.names = list(self._core.scheduler._requests)
        self.turn()
        self.swept, self.warm = [], []

    def _request(self, length: int) -> EngineCoreRequest:
        prompt = [self._rng.randrange(3, 40000) for _ in range(length)]
        params = SamplingParams(max_tokens=MAX_TOKENS, seed=0, stop_token_ids=(1, 2))
        return EngineCoreRequest(f"{self._rng.getrandbits(80):020x}-0", 0, prompt, [], params, 0.0)

    def turn(self) -> None:
        self.swept += [self.step(sweep=True) for _ in range(STEPS)]
        self.warm += [self.step(sweep=False) for _ in range(STEPS)][2:]

    def step(self, *, sweep: bool) -> float:
        tokens = [self._rng.randrange(3, 40000) for _ in self.names]
        self._executor.answer = ModelRunnerOutput(self.names, tokens)
        if sweep:
            WEIGHTS.sum()
        began = time.perf_counter()
        outputs = self._core.step()
        took = time.perf_counter() - began
        assert len(outputs[0].outputs) == self.num_running
        return took

    def __str__(self) -> str:
        median, p99 = statistics.median(self.warm), sorted(self.warm)[len(self.warm) * 99 // 100]
        per_request = [
            f"{1e6 * seconds / self.num_running:6.2f}" for seconds in (median, p99, statistics.median(self.swept))
        ]
        return (
            f"R {self.num_running:<5} per_step_us {median * 1e6:8.1f}  per_request_us {per_request[0]}  "
            f"p99 {per_request[1]}  after_forward {per_request[2]}"
        )


def main() -> None:
    engines = [Decoding(num_running) for num_running in NUM_RUNNING]
    calm_collector(YOUNG)
    for _ in range(NUM_TURNS):
        for engine in engines:
            engine.turn()
    for engine in engines:
        print(engine)


if __name__ == "__main__":
    main()
