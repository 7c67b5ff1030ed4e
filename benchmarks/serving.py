"""The demo model served, and `headrace bench serve` on it: one scenario after another, each with prompts of its own.

A scenario is a table's row: its name and the flags. What came out goes into LOG.md, with date and CPU, failures too.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

from headrace.bench.startup import free_port, serving
from headrace.errors import StartupError

SCENARIOS = {
    "1x128x128": "--max-concurrency 1 --num-prompts 4 --random-input-len 128 --random-output-len 128",
    "8x128x128": "--max-concurrency 8 --num-prompts 32 --random-input-len 128 --random-output-len 128",
    "32x128x128": "--max-concurrency 32 --num-prompts 96 --random-input-len 128 --random-output-len 128",
    "4x1024x64": "--max-concurrency 4 --num-prompts 12 --random-input-len 1024 --random-output-len 64",
    "poisson": "--request-rate 1 --num-prompts 30 --random-input-len 128 --random-output-len 64 "
    "--goodput ttft:1000 tpot:100",
    "bursts": "--request-rate 1 --burstiness 0.25 --num-prompts 30 --random-input-len 128 --random-output-len 64 "
    "--goodput ttft:1000 tpot:100",
    "shared-prefix": "--max-concurrency 8 --num-prompts 32 --random-prefix-len 512 --random-input-len 32 "
    "--random-output-len 64",
    "chat": "--backend openai-chat --max-concurrency 4 --num-prompts 16 --random-input-len 128 --random-output-len 64",
}


def main() -> None:
    port = free_port()
    with tempfile.TemporaryFile("w+") as stderr, serving([], port, stderr):
        for name, flags in SCENARIOS.items():
            print(f"### {name}: {flags}", flush=True)
            command = [sys.executable, "-m", "headrace", "bench", "serve", "--port", str(port), "--num-warmups", "1"]
            if subprocess.run([*command, *flags.split()], check=False).returncode:
                raise StartupError(f"scenario {name} has no request that was answered")
