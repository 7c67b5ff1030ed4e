"""How near the native backend is to what the machine can do: reading, multiplying, and our use of both, in one run.

Every round measures the roof and the steps below it, one after another, because the speed of a shared machine changes
from minute to minute; the figures are medians over rounds of the ratios within a round. docs/performance.md explains.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from headrace.backends.native.extension import native
from headrace.backends.native.graph import AttentionMemory, Buffers, Capacity, choose_types, write_tape
from headrace.backends.native.recorder import RecordedStep, Recorder
from headrace.config.cpu import cpu_model
from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.contracts.sampling_params import SamplingParams
from headrace.contracts.scheduler import CachedRequestData, NewRequestData, SchedulerOutput
from headrace.worker.worker import Worker

ROUNDS = 5
READ_BYTES = 256 << 20  # several times the caches
CONTEXT = 192
PROMPT = 2048
BLOCK_SIZE = 16
BLOCKS_OF_ROW = (PROMPT + 256) // BLOCK_SIZE


class Bench:
    def __init__(self, quantization: str = "none", activations: str = "auto", most_streams: int = 32) -> None:
        self.config = resolve(
            EngineConfig(
                backend="native",
                dtype="bfloat16",
                quantization=quantization,
                activation_quantization=activations,
                max_model_len=PROMPT + 256,
                block_size=BLOCK_SIZE,
            )
        )
        self.worker = Worker(self.config)
        self.worker.load_model()
        self.worker.initialize_kv_cache(most_streams * BLOCKS_OF_ROW)
        self.backend = self.worker._backend
        self.pool, self.kernels = self.backend._pool, self.backend.instruction_set
        program = self.worker._program
        recorder = Recorder(self.backend.memory)
        program.forward(recorder, RecordedStep())
        self.entries = choose_types(recorder.entries, rounds_rows=native.rounds_rows(self.kernels))
        self.products = [entry for entry in self.entries if entry.op in ("linear", "gated")]
        capacity = Capacity(PROMPT, PROMPT, 64)
        self.buffers = Buffers(self.entries, capacity, kept=())
        self.attention = AttentionMemory(program.attention_layers, PROMPT, PROMPT, self.pool.num_threads)
        self.products_tape = native.Tape(self.pool, self.kernels)
        write_tape(self.products_tape, self.products, self.buffers, self.attention)
        self.layers = program.attention_layers

    # ---- the roof

    def bandwidth(self) -> float:
        return float(native.measure_bandwidth(self.pool, self.kernels, READ_BYTES))

    def gemm_peak(self) -> float:
        """Operations a second of the model's quickest matrix at 256 rows."""
        best = 0.0
        shapes = {(entry.arguments["w"].out, entry.arguments["w"].in_): entry for entry in self.products}
        for (out, width), entry in shapes.items():
            if out > 16384:
                continue  # the vocabulary: too large for any cache
            tape = native.Tape(self.pool, self.kernels)
            write_tape(tape, [entry], self.buffers, self.attention)
            seconds = min(timed(lambda tape=tape: replay(tape, 256)) for _ in range(5))
            best = max(best, 2.0 * out * width * 256 / seconds)
        return best

    def products_seconds(self, rows: int) -> float:
        return min(timed(lambda: replay(self.products_tape, rows)) for _ in range(3))

    # ---- what a step reads and computes

    def weight_bytes(self) -> int:
        return sum(4 * entry.arguments["w"].num_words for entry in self.products)

    def kv_bytes(self, context: int) -> float:
        return self.backend.memory.kv_block_bytes(self.layers, BLOCK_SIZE) / BLOCK_SIZE * context

    def prompt_operations(self) -> float:
        """Of a whole prompt, logits of its last token alone."""
        *layers, head = self.products
        products = sum(2.0 * entry.arguments["w"].out * entry.arguments["w"].in_ for entry in layers)
        last = 2.0 * head.arguments["w"].out * head.arguments["w"].in_
        attention = sum(4.0 * layer.num_heads * layer.head_dim for layer in self.layers) * PROMPT * PROMPT / 2
        return products * PROMPT + last + attention

    # ---- steps

    def step(self, scheduled: dict[str, int], new: list[NewRequestData], finished: list[str]) -> float:
        output = SchedulerOutput(0, new, CachedRequestData(), scheduled, sum(scheduled.values()), [], finished)

        def run() -> None:
            self.worker.execute_model(output)
            self.worker.sample_tokens()

        return timed(run)

    def decode(self, num_streams: int) -> float:
        """Median seconds of a step in which each stream, at CONTEXT, decodes one token."""
        requests = [self.request(f"stream {i}", CONTEXT, i) for i in range(num_streams)]
        for request in requests:
            self.step({request.req_id: CONTEXT}, [request], [])
        scheduled = {request.req_id: 1 for request in requests}
        seconds = [self.step(scheduled, [], []) for _ in range(12)]
        self.step({}, [], list(scheduled))
        return statistics.median(seconds)

    def prefill(self) -> float:
        request = self.request("prompt", PROMPT, 0)
        budget = self.config.scheduler.max_num_batched_tokens
        seconds = [
            self.step({"prompt": min(budget, PROMPT - start)}, [] if start else [request], [])
            for start in range(0, PROMPT, budget)
        ]
        self.step({}, [], ["prompt"])
        return sum(seconds)

    def request(self, name: str, length: int, row: int) -> NewRequestData:
        prompt = np.random.default_rng(row).integers(0, 49000, length).tolist()
        blocks = list(range(row * BLOCKS_OF_ROW, (row + 1) * BLOCKS_OF_ROW))
        return NewRequestData(name, prompt, [], SamplingParams(temperature=0.0), [blocks], 0)


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def replay(tape: native.Tape, rows: int) -> None:
    zeros, none = np.zeros(rows, np.int32), np.empty(0, np.int32)
    starts = np.zeros(1, np.int32)
    tape.replay(zeros, zeros, zeros, starts, none, np.empty((0, 0), np.int32), zeros)


def main() -> None:
    bench = Bench()
    print(f"{cpu_model()}, {bench.pool.num_threads} threads, kernels {bench.kernels}")
    arithmetic = max(native.measure_arithmetic(bench.pool, bench.kernels) for _ in range(5))
    rows = []
    for _ in range(ROUNDS):
        bandwidth, peak = bench.bandwidth(), bench.gemm_peak()
        one = bench.decode(1)
        bandwidth = max(bandwidth, bench.bandwidth())
        many, products = bench.decode(32), bench.products_seconds(32)
        prompt = bench.prefill()
        peak = max(peak, bench.gemm_peak())
        read = bench.weight_bytes() + bench.kv_bytes(CONTEXT)
        floor = products + 32 * bench.kv_bytes(CONTEXT) / bandwidth
        rows.append({
            "read bandwidth, GB/s": bandwidth / 1e9,
            "GEMM peak at 256 rows, GFLOP/s": peak / 1e9,
            "batch of 1: step, ms": one * 1e3,
            "batch of 1: share of bandwidth": read / one / bandwidth,
            f"prefill {PROMPT}: tok/s": PROMPT / prompt,
            f"prefill {PROMPT}: share of GEMM peak": bench.prompt_operations() / prompt / peak,
            "batch of 32: step, ms": many * 1e3,
            "batch of 32: GEMMs alone, ms": products * 1e3,
            "batch of 32: step over GEMMs and KV": many / floor,
        })  # fmt: skip
    print(f"{'arithmetic on registers, GFLOP/s':<40}{arithmetic / 1e9:9.1f}  best of 5")
    for name in rows[0]:
        values = sorted(row[name] for row in rows)
        print(f"{name:<40}{statistics.median(values):9.2f}  {values[0]:.2f} to {values[-1]:.2f}")
    bench.worker.close()


if __name__ == "__main__":
    main()
