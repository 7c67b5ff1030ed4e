"""From the command to the first token: five cold processes in a row with a warm page cache."""

from __future__ import annotations

from headrace.cli import bench


def main() -> None:
    bench.run(["startup", "--num-iters", "5"])
