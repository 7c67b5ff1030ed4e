"""`headrace doctor`: what this machine and this installation can do, and what is wrong with them."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from headrace import __version__
from headrace.config.address import API_KEY_VARIABLE
from headrace.config.cpu import available_memory, cpu_flags, cpu_model, usable_cores
from headrace.config.model_files import locate_model, read_model_facts
from headrace.config.resolve import NATIVE_KERNELS
from headrace.errors import StartupError
from headrace.ipc.run_dir import socket_folder

Line = tuple[bool, str, str]  # is it well, what, how


def run(argv: Sequence[str]) -> int:
    argparse.ArgumentParser(prog="headrace doctor", description=__doc__).parse_args(argv)
    lines = [*machine(), *packages(), *kernels(), *demo_model(), *sockets()]
    width = max(len(what) for _, what, _ in lines)
    for is_well, what, how in lines:
        print(f"{'ok ' if is_well else 'BAD'}  {what.ljust(width)}  {how}")
    return 0 if all(is_well for is_well, _, _ in lines) else 1


def machine() -> Iterator[Line]:
    yield True, "headrace", __version__
    yield sys.version_info >= (3, 11), "python", f"{platform.python_version()} ({sys.executable})"
    yield True, "cpu", cpu_model()
    yield True, "instruction sets", " ".join(cpu_flags()) or "unknown"
    yield True, "usable cores", f"{usable_cores()} of {os.cpu_count()} (affinity and cgroup quota)"
    yield available_memory() > 2**30, "available memory", f"{available_memory() / 2**30:.1f} GiB"
    variables = {name: value for name, value in os.environ.items() if name.startswith(("HEADRACE_", "OPENBLAS_"))}
    if API_KEY_VARIABLE in variables:
        variables[API_KEY_VARIABLE] = "(set)"
    yield True, "environment", " ".join(f"{k}={v}" for k, v in sorted(variables.items())) or "nothing set"


def packages() -> Iterator[Line]:
    """Each package that headrace needs, and its version."""
    try:
        requirements = importlib.metadata.requires("headrace") or []
    except importlib.metadata.PackageNotFoundError:
        yield (
            False,
            "installation",
            "headrace runs from a source folder that is not installed; pip install -e . does it",
        )
        return
    for requirement in requirements:
        if "extra ==" in requirement:
            continue
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        try:
            yield True, name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield False, name, "not installed; pip install headrace brings it"


def kernels() -> Iterator[Line]:
    """Without them numpy computes, which is slow but nothing that is wrong."""
    if not find_spec(NATIVE_KERNELS):
        yield True, "native kernels", "none: numpy computes the model, slowly; docs/building.md says how to build them"
        return
    try:
        from headrace.backends.native.extension import choose_instruction_set, native

        chosen = choose_instruction_set()
    except StartupError as error:
        yield False, "native kernels", error.message
    else:
        yield True, "native kernels", f"{chosen} (usable here: {', '.join(native.instruction_sets())})"


def demo_model() -> Iterator[Line]:
    try:
        path = locate_model("")
        facts = read_model_facts(path)
    except StartupError as error:
        yield False, "demo model", error.message
    else:
        yield True, "demo model", f"{path} ({facts.architecture}, {facts.num_parameters / 1e6:.0f} M parameters)"


def sockets() -> Iterator[Line]:
    folder = socket_folder()
    writable = os.access(folder, os.W_OK | os.X_OK)
    yield writable, "folder for sockets", folder + ("" if writable else " is not writable")
