"""Attention of a decode step of the demo model's shape, by the type of its KV cache: bfloat16, int8, fp8.

Every round measures all types, one after another, because the speed of a shared machine changes from minute to minute;
figures are medians over rounds, of milliseconds and of ratios within a round.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from headrace.backends.native.backend import NativeBackend
from headrace.backends.native.extension import native
from headrace.backends.native.graph import AttentionMemory, Buffers, Capacity, write_tape
from headrace.backends.native.recorder import RecordedStep, Recorder
from headrace.config.cpu import usable_cores
from headrace.model.ops import AttentionSpec, Precision

LAYERS = [AttentionSpec(layer, 9, 3, 64, 64**-0.5) for layer in range(30)]
BLOCK_SIZE = 16
CASES = ((32, 192), (8, 1024), (1, 8000))  # streams, context
KV_TYPES = ("bfloat16", "int8", "fp8")
ROUNDS = 15


class Attention:
    """The KV write and the attention of all layers, in scattered blocks."""

    def __init__(self, kv_cache_dtype: str, num_streams: int, context: int) -> None:
        self.backend = NativeBackend(usable_cores(), Precision("bfloat16", kv_cache_dtype=kv_cache_dtype))
        memory, pool = self.backend.memory, self.backend._pool
        blocks_each = -(-context // BLOCK_SIZE)
        memory.allocate_kv_cache(LAYERS, num_streams * blocks_each, BLOCK_SIZE)
        recorder = Recorder(memory)
        q, k, v = (recorder.value(native.Rows.tokens, heads * 64) for heads in (9, 3, 3))
        for layer in LAYERS:
            recorder.paged_attention(q, k, v, layer, RecordedStep())
        buffers = Buffers(recorder.entries, Capacity(num_streams, 0, 0), kept=())
        self._rows = native.Buffer(4 * num_streams * 1024 + 64)  # random numbers, as queries, keys and values
        self._rows.array().view(np.float32)[:] = np.random.default_rng(0).standard_normal(self._rows.size // 4)
        for view in (q, k, v):
            buffers.put(view.value, self._rows.address)
        self._memory = AttentionMemory(LAYERS, num_streams, context, pool.num_threads), buffers
        self._tape = native.Tape(pool, self.backend.instruction_set)
        write_tape(self._tape, recorder.entries, buffers, self._memory[0])

        order = np.random.default_rng(1).permutation(num_streams * blocks_each).astype(np.int32)
        self._tables = order.reshape(num_streams, blocks_each)
        self._num_streams = num_streams
        for position in range(context):
            self._replay(position, num_requests=0)

    def step(self, position: int) -> float:
        """Seconds of a step in which every stream is at this position."""
        start = time.perf_counter()
        self._replay(position, self._num_streams)
        return time.perf_counter() - start

    def _replay(self, position: int, num_requests: int) -> None:
        """With no requests keys and values are written, and nothing attends to them."""
        positions = np.full(self._num_streams, position, np.int32)
        slots = self._tables[:, position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        starts = np.arange(self._num_streams + 1, dtype=np.int32)
        lengths = positions[:num_requests] + 1
        self._tape.replay(positions, positions, slots, starts, lengths, self._tables, np.empty(0, np.int32))


def main() -> None:
    for num_streams, context in CASES:
        by_type = {kind: Attention(kind, num_streams, context) for kind in KV_TYPES}
        print(f"{num_streams} streams at context {context}, {by_type['int8'].backend.instruction_set}")
        rounds = [
            {kind: min(attention.step(context - 1) for _ in range(3)) for kind, attention in by_type.items()}
            for _ in range(ROUNDS)
        ]
        for kind, attention in by_type.items():
            seconds = statistics.median(each[kind] for each in rounds)
            ratio = statistics.median(each[kind] / each["bfloat16"] for each in rounds)
            print(f"  {kind:<10}{1e3 * seconds:8.2f} ms{ratio:8.2f} of bfloat16")
            attention.backend.close()


if __name__ == "__main__":
    main()
