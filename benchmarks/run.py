"""All benchmarks, or those that are named: `make bench`, `make bench ARGS="startup"`. Speed is measured here, never in
tests; figures belong with the CPU that they were measured on, which is printed first."""

from __future__ import annotations

import importlib
import os
import sys

from headrace.config.cpu import cpu_flags, cpu_model, usable_cores

BENCHMARKS = {
    "scheduler": "the engine core in steady decode, microseconds for each running request and step",
    "contracts": "messages between processes: encode, decode, bytes",
    "startup": "serve, from the command to the first token, and where the time goes",
    "serving": "the demo model under load over HTTP: streams, arrivals, bursts, shared prefixes, chat",
    "roofline": "the native backend against what this machine can read and multiply",
    "few_bits": "the demo model's matrices in few bits: steps, prefill, and the share of the bandwidth at one stream",
    "kv_cache": "attention by the type of the KV cache: bfloat16, int8, fp8",
    "numpy_backend": "steps of the demo model on the numpy backend: decode and prefill",
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no such benchmark: {unknown[0]}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    core_type = os.environ.get("OPENBLAS_CORETYPE", "not set")
    print(f"# {cpu_model()} ({' '.join(cpu_flags())}), {usable_cores()} cores, OPENBLAS_CORETYPE {core_type}")
    for name in names or BENCHMARKS:
        print(f"## {name}: {BENCHMARKS[name]}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.path[0] = os.path.dirname(sys.path[0])
    sys.exit(main(sys.argv[1:]))
