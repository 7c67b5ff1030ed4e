"""`python -m headrace.simulation`: run many seeds in several processes, count what happened, show what failed.

A child is this program again with one job; it writes a line of JSON for each failing seed and one with its counters.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

from headrace.simulation.adversarial import make_adversarial_scenario
from headrace.simulation.generate import make_scenario
from headrace.simulation.scenario import Scenario, literal
from headrace.simulation.shrink import shrink, violation_of
from headrace.simulation.violation import Violation
from headrace.simulation.world import run

SEEDS_AT_ONCE = 250  # of one child: so that all processes are busy to the end
SEEDS_BETWEEN_NEWS = 10_000
MAX_FAILURES = 20  # then no more seeds are started


def main() -> int:
    arguments = parse_arguments()
    make = maker(arguments)
    if arguments.child:
        run_seeds(make, arguments.first, arguments.seeds)
        return 0
    began = time.monotonic()
    counters, failures = run_in_processes(arguments)
    report(counters, time.monotonic() - began)
    if failures and not arguments.no_shrink:
        show_small(make(min(failures)[0]))
    return 1 if failures else 0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headrace.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, metavar="N", help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="J", help="processes")
    parser.add_argument("--adversarial", action="store_true", help="scenarios that try to starve somebody")
    parser.add_argument("--no-shrink", action="store_true", help="do not make the first failure small")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def maker(arguments: argparse.Namespace) -> Callable[[int], Scenario]:
    return make_adversarial_scenario if arguments.adversarial else make_scenario


def run_seeds(make: Callable[[int], Scenario], first: int, num_seeds: int) -> None:
    """What a child does."""
    counters: Counter[str] = Counter()
    for seed in range(first, first + num_seeds):
        try:
            counters += run(make(seed))
            counters["runs"] += 1
        except Violation as violation:
            say(json.dumps({"seed": seed, "message": violation.message}))
    say(json.dumps({"counters": counters}))


def run_in_processes(arguments: argparse.Namespace) -> tuple[Counter[str], list[tuple[int, str]]]:
    """The counters of all seeds, and the seeds that failed. Raises `ChildProcessError` for a child that dies."""
    counters: Counter[str] = Counter()
    failures: list[tuple[int, str]] = []
    end = arguments.first + arguments.seeds
    batches = [(first, min(SEEDS_AT_ONCE, end - first)) for first in range(arguments.first, end, SEEDS_AT_ONCE)]
    running: list[subprocess.Popen[str]] = []
    while batches or running:
        while batches and len(running) < arguments.jobs:
            running.append(start_child(*batches.pop(0), arguments))
        child = running.pop(0)
        output, _ = child.communicate()
        if child.returncode:
            raise ChildProcessError(f"a process of the simulation ended with {child.returncode}")
        for line in map(json.loads, output.splitlines()):
            if "seed" in line:
                failures.append((line["seed"], line["message"]))
                say(f"FAILED: seed {line['seed']}: {line['message']}")  # at once: a long run may be cut short
            else:
                num_before = counters["runs"]
                counters.update(line["counters"])
                if counters["runs"] // SEEDS_BETWEEN_NEWS > num_before // SEEDS_BETWEEN_NEWS:
                    say(f"{counters['runs']:,} runs passed")
        if len(failures) >= MAX_FAILURES:
            batches.clear()
    return counters, failures


def start_child(first: int, num_seeds: int, arguments: argparse.Namespace) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headrace.simulation", "--child", f"--first={first}", f"--seeds={num_seeds}"]
    if arguments.adversarial:
        command.append("--adversarial")
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def report(counters: Counter[str], seconds: float) -> None:
    num_runs = counters.pop("runs", 0)
    for name, count in sorted(counters.items()):
        say(f"{count:12,}  {name}")
    say(f"{num_runs:,} runs passed in {seconds:.1f} s: {num_runs / seconds * 60:,.0f} a minute")


def show_small(scenario: Scenario) -> None:
    violation = violation_of(scenario)
    if violation is None:
        say("It does not fail here: the failure depends on something else than the seed.")
        return
    small, violation = shrink(scenario, violation)
    say(f"shrunk: {violation.message}\n{literal(small)}")


if __name__ == "__main__":
    sys.exit(main())
