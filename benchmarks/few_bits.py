"""Matrices of few bits beside bfloat16: milliseconds of a step by the number of streams, tokens a second of a prefill,
and at what share of the bandwidth one stream's step reads matrices."""

from __future__ import annotations

import statistics

from benchmarks.roofline import CONTEXT, PROMPT, Bench
from headrace.config.cpu import cpu_model

KINDS = (
    ("none", "auto"),
    ("stored", "none"),
    ("stored", "int16"),
    ("stored", "int8"),
    ("int8", "auto"),
    ("int8", "none"),
    ("int4", "none"),
)
STREAMS = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 3


def main() -> None:
    print(f"{cpu_model()}; context {CONTEXT}, prompt {PROMPT}, best of {ROUNDS}; share: median")
    print(f"{'':<20}" + "".join(f"{streams:>8}" for streams in STREAMS) + f"{'prefill':>10}{'share':>8}{'MiB':>6}")
    for weights, rows in KINDS:
        print(f"{f'{weights}, rows {rows}':<20}{measured(Bench(weights, rows, max(STREAMS)))}", flush=True)


def measured(bench: Bench) -> str:
    steps = [min(bench.decode(streams) for _ in range(ROUNDS)) for streams in STREAMS]
    prefill = PROMPT / min(bench.prefill() for _ in range(ROUNDS))
    shares = []
    for _ in range(3 * ROUNDS):
        bandwidth = max(bench.bandwidth(), bench.bandwidth())
        shares.append(bench.weight_bytes() / bench.decode(1) / bandwidth)
    bench.worker.close()
    cells = "".join(f"{seconds * 1e3:8.2f}" for seconds in steps)
    return f"{cells}{prefill:10.0f}{statistics.median(shares):8.2f}{bench.weight_bytes() / 2**20:6.0f}"


if __name__ == "__main__":
    main()
