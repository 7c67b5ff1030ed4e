"""Do the tests of the core find a mistake in the core? Puts one-line mistakes into it, one at a time, and counts.

Which mutants are made is decided by `--seed` and the text of the code alone, and an edit of one line changes the choice
of that line only. Each mutant runs in a copy of the package: first the unit tests of the core, and if they find nothing
the simulated engine. `make mutants`, or `make mutants ARGS="--count 20 --seed 7"`. docs/testing.md explains the
survivors.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from tools.mutations import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[1]
MUTATED = ("headrace/core/sched", "headrace/core/kv_cache")
COPIED = ("headrace", "tests/__init__.py", "tests/conftest.py", "tests/unit/__init__.py", "tests/unit/core")
LEAST_CAUGHT = 0.85
MAX_MEMORY = 4 << 30  # bytes; a mutant may loop for ever and collect

PYTEST = ("pytest", "tests/unit/core", "-x", "-q", "-p", "no:cacheprovider", "--timeout=20")
SIMULATION = ("headrace.simulation", "--seeds", "300", "--jobs", "1", "--no-shrink")
ADVERSARIAL = ("headrace.simulation", "--adversarial", "--seeds", "100", "--jobs", "1", "--no-shrink")


class Suite(NamedTuple):
    name: str
    arguments: tuple[str, ...]  # after python -m
    timeout: float  # seconds; a mutant that hangs is caught


class Verdict(NamedTuple):
    mutant: Mutant
    caught_by: str | None  # None: it survived
    seconds: float


def suites() -> list[Suite]:
    found = [Suite("unit tests", PYTEST, 90)]
    if (ROOT / "headrace/simulation/__main__.py").exists():
        found += [Suite("simulation", SIMULATION, 90), Suite("adversarial", ADVERSARIAL, 90)]
    return found


# ---- which mutants ---------------------------------------------------------------------------------------------------


def choose_mutants(root: Path, count: int, seed: int) -> list[Mutant]:
    """`count` of all mutants, drawn by a hash of seed and text; no two of one line as long as there are other lines."""
    every: list[Mutant] = []
    for folder in MUTATED:
        for path in sorted((root / folder).glob("*.py")):
            every += mutants_of(path.read_text(), str(path.relative_to(root)))
    every.sort(key=lambda m: _draw(m, seed))
    lines: set[tuple[str, int]] = set()
    firsts, others = [], []
    for mutant in every:
        place = (mutant.path, mutant.line)
        (others if place in lines else firsts).append(mutant)
        lines.add(place)
    chosen = [*firsts, *others][:count]
    return sorted(chosen, key=lambda m: (m.path, m.line, m.after))


def _draw(mutant: Mutant, seed: int) -> bytes:
    text = "\0".join([str(seed), mutant.path, mutant.function, mutant.before, mutant.after])
    return blake2b(text.encode(), digest_size=8).digest()


# ---- running one -----------------------------------------------------------------------------------------------------


class Workspace:
    """A copy of the package, in which one mutant at a time stands in for the file that it mutates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in COPIED:
            source, target = ROOT / name, folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        shutil.copy(ROOT / "pyproject.toml", folder)

    def warm_up(self) -> str | None:
        """Run everything without a mutant, and let Python keep the bytecode. None if all pass, else what it said."""
        for suite in suites():
            fault = self._run(suite, keep_bytecode=True)
            if fault is not None:
                return fault
        return None

    def judge(self, mutant: Mutant) -> Verdict:
        path = self._folder / mutant.path
        original = path.read_text()
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()  # it may look as fresh as the mutant: same second, same size
        began = time.monotonic()
        path.write_text(mutant.source)
        try:
            faults = (self._run(suite) for suite in suites())
            caught_by = next((fault for fault in faults if fault is not None), None)
        finally:
            path.write_text(original)
        return Verdict(mutant, caught_by, time.monotonic() - began)

    def _run(self, suite: Suite, *, keep_bytecode: bool = False) -> str | None:
        """None if the suite passes, else what failed."""
        environment = os.environ | {"PYTHONPATH": str(self._folder), "PYTHONHASHSEED": "0"}
        if not keep_bytecode:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        process = subprocess.Popen(
            [sys.executable, "-m", *suite.arguments],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        resource.prlimit(process.pid, resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
        try:
            said, _ = process.communicate(timeout=suite.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"{suite.name}: time-out"
        if process.returncode == 0:
            return None
        failed = re.search(r"^(?:FAILED|ERROR) tests/unit/core/(\S+)", said, re.MULTILINE)
        return f"{suite.name}: {failed[1] if failed else last_line(said)}"


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:120] if lines else "no word"


def broken_scheduler() -> Mutant:
    """A mutant that nothing can miss: does the copy run at all, or some other headrace?"""
    path = "headrace/core/sched/scheduler.py"
    return Mutant(path, 1, "", "", "", "raise SystemError('mutant')\n")


# ---- all of them -----------------------------------------------------------------------------------------------------


def run_all(mutants: list[Mutant], num_jobs: int, *, only_survivors: bool) -> list[Verdict] | None:
    """The verdicts, printed as they come; None if the tests fail without any mutant."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(num_jobs) as threads:
        spaces = [Workspace(Path(folder) / str(i)) for i in range(num_jobs)]
        for fault in threads.map(Workspace.warm_up, spaces):
            if fault is not None:
                print(f"without any mutant: {fault}", file=sys.stderr)
                return None
        if spaces[0].judge(broken_scheduler()).caught_by is None:
            print("the tests do not run the copy that is mutated", file=sys.stderr)
            return None
        idle: queue.SimpleQueue[Workspace] = queue.SimpleQueue()
        for space in spaces:
            idle.put(space)

        def judge(mutant: Mutant) -> Verdict:
            space = idle.get()
            try:
                return space.judge(mutant)
            finally:
                idle.put(space)

        verdicts = []
        for verdict in threads.map(judge, mutants):
            verdicts.append(verdict)
            if verdict.caught_by is None or not only_survivors:
                print_verdict(verdict)
        return verdicts


def print_verdict(verdict: Verdict) -> None:
    mutant = verdict.mutant
    fate = f"caught by {verdict.caught_by}" if verdict.caught_by is not None else "SURVIVED"
    print(f"{mutant.path}:{mutant.line} {mutant.function}: {fate} ({verdict.seconds:.1f} s)")
    print(f"  - {mutant.before}\n  + {mutant.after}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="how many mutants (100)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (0)")
    parser.add_argument("--only-survivors", action="store_true", help="print only those that no test finds")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    options = parser.parse_args()
    mutants = choose_mutants(ROOT, options.count, options.seed)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.path}:{mutant.line} {mutant.function}\n  - {mutant.before}\n  + {mutant.after}")
        return 0
    began = time.monotonic()
    verdicts = run_all(mutants, options.jobs, only_survivors=options.only_survivors)
    if verdicts is None:
        return 2
    num_caught = sum(verdict.caught_by is not None for verdict in verdicts)
    print(f"{num_caught} of {len(verdicts)} mutants caught in {time.monotonic() - began:.0f} s (seed {options.seed})")
    return 0 if num_caught >= LEAST_CAUGHT * len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
