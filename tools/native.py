"""The native kernels: built into this source folder, and tested in other builds of them.

    python -m tools.native build       what `make serve`, `make test` and `make setup` do, and `make native`
    python -m tools.native sanitize    with AddressSanitizer, UndefinedBehaviorSanitizer; the pool with ThreadSanitizer
    python -m tools.native emulate     the AVX-512 kernels on a processor without AVX-512

`pip install .` builds the same CMakeLists.txt through scikit-build-core. An editable install does not: the extension
belongs into the source folder, its build folder is kept so that the next build is incremental, and the compiler's words
are shown when it fails. docs/building.md explains what is built and what happens where it cannot be.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from headrace.config.cpu import usable_cores

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("headrace/backends/native")
EXTENSION = "_native" + (sysconfig.get_config_var("EXT_SUFFIX") or ".so")
BUILD = ROOT / "build"
# One for each Python: an extension is made for one.
NATIVE_BUILD = BUILD / f"native-{sysconfig.get_config_var('SOABI')}"
MIN_CMAKE = (3, 18)

COMPILERS = ("c++", "g++", "clang++")
SHOWN_LINES = 40  # of a failed build


class NothingToBuildWithError(Exception):
    """This machine lacks a tool. Our sources may be faultless."""


class BuildFailedError(Exception):
    """CMake or the compiler refused our sources. The message is what they said last."""


# ---- the build -------------------------------------------------------------------------------------------------------


def build(folder: Path, target: str = "_native", **definitions: str) -> Path:
    """Configure and compile, incrementally if `folder` is there already; the file made. Raises the two errors above."""
    compiler = find_compiler()
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        raise NothingToBuildWithError("this Python has no headers (on Debian and Ubuntu: apt install python3-dev)")
    tools = find_build_tools()
    if not is_configured_here(folder):
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.txt").unlink(missing_ok=True)
    generator = (
        ["-G", "Ninja"] if shutil.which("ninja", path=tools) and not (folder / "CMakeCache.txt").exists() else []
    )
    definitions = {"Python_EXECUTABLE": sys.executable, "CMAKE_CXX_COMPILER": compiler} | definitions
    flags = [f"-D{name}={value}" for name, value in definitions.items()]
    run_logged(folder, tools, "cmake", "-S", str(ROOT), "-B", str(folder), *generator, *flags)
    run_logged(folder, tools, "cmake", "--build", str(folder), "--target", target, "--parallel", str(usable_cores()))
    return folder / (EXTENSION if target == "_native" else target)


def find_compiler() -> str:
    """The one that `CXX` names, or else the first that works."""
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else COMPILERS:
        path = shutil.which(shlex.split(name)[0])
        if path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return path
    raise NothingToBuildWithError(
        f"the C++ compiler that CXX names, {wanted}, does not work"
        if wanted
        else f"no C++ compiler is found ({', '.join(COMPILERS)}; on Debian and Ubuntu: apt install g++)"
    )


def find_build_tools() -> str:
    """Installs nanobind, and CMake where the system has none that is new enough; the PATH to find them in."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    wanted = [requirement for requirement in requires if requirement.startswith("nanobind")]
    if cmake_version(path) < MIN_CMAKE:
        wanted += [f"cmake>={'.'.join(map(str, MIN_CMAKE))}", "ninja"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    command = [*pip, "--only-binary=:all:", "--constraint", str(ROOT / "constraints.txt"), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or cmake_version(path) < MIN_CMAKE:
        raise NothingToBuildWithError(f"pip cannot install {' '.join(wanted)}\n{done.stderr.strip()}")
    return path


def cmake_version(path: str) -> tuple[int, ...]:
    if (cmake := shutil.which("cmake", path=path)) is None:
        return (0,)
    said = subprocess.run([cmake, "--version"], capture_output=True, text=True, check=False).stdout
    numbers = re.search(r"(\d+)\.(\d+)", said)
    return tuple(map(int, numbers.groups())) if numbers else (0,)


def is_configured_here(folder: Path) -> bool:
    """Whether CMake's cache is of these two folders, not of some that have been moved or copied since."""
    try:
        cache = (folder / "CMakeCache.txt").read_text()
    except OSError:
        return False
    return all(
        f"{name}:INTERNAL={path}\n" in cache
        for name, path in (("CMAKE_HOME_DIRECTORY", ROOT), ("CMAKE_CACHEFILE_DIR", folder))
    )


def run_logged(folder: Path, path: str, *command: str) -> None:
    done = subprocess.run(
        command,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    with (folder / "log.txt").open("a") as log:
        log.write(f"{shlex.join(command)}\n{done.stdout}")
    if done.returncode:
        raise BuildFailedError("\n".join(done.stdout.splitlines()[-SHOWN_LINES:]))


def put_in_place(extension: Path, root: Path) -> Path:
    """Into the package under `root`, by renaming: a server that runs has the old file mapped."""
    place = root / PACKAGE / EXTENSION
    new = place.with_suffix(".new")
    shutil.copy2(extension, new)
    new.replace(place)
    return place


# ---- commands --------------------------------------------------------------------------------------------------------


def build_in_place(accept: str, stamp: Path | None) -> int:
    """The exit status. `accept` says what may go wrong without being an error."""
    began = time.monotonic()
    print("Building the native kernels (about a minute on two cores) ...", flush=True)
    try:
        place = put_in_place(build(NATIVE_BUILD), ROOT)
    except NothingToBuildWithError as error:
        return go_without(str(error), accept != "nothing", stamp)
    except BuildFailedError as error:  # no stamp: whoever edits the sources must see it again
        log = NATIVE_BUILD.relative_to(ROOT) / "log.txt"
        return go_without(f"the build failed; all of it is in {log}\n{error}", accept == "failure", None)
    print(f"Built {place.relative_to(ROOT)} in {time.monotonic() - began:.0f} s")
    touch(stamp)
    return 0


def go_without(reason: str, is_accepted: bool, stamp: Path | None) -> int:
    (ROOT / PACKAGE / EXTENSION).unlink(missing_ok=True)  # kernels of older sources would be worse than none
    print(f"\nNO NATIVE KERNELS: {reason}\n", file=sys.stderr)
    if not is_accepted:
        return 1
    print("headrace works all the same, but computes with numpy: exact, but slow. To try again: make native\n")
    touch(stamp)
    return 0


def touch(stamp: Path | None) -> None:
    if stamp is not None:
        stamp.touch()


def sanitize(pytest_args: Sequence[str]) -> int:
    pool_test = build(BUILD / "sanitize-pool", "pool_test", HEADRACE_SANITIZE="thread")
    # ThreadSanitizer of older compilers does not know the address layout of newer kernels.
    setarch = shutil.which("setarch")
    print("The pool under ThreadSanitizer ...", flush=True)
    prefix = [setarch, platform.machine(), "-R"] if setarch else []
    status = subprocess.run([*prefix, pool_test], env=os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}, check=False)
    if status.returncode:
        return status.returncode
    print("The kernels under AddressSanitizer and UndefinedBehaviorSanitizer ...", flush=True)
    extension = build(BUILD / "sanitize", HEADRACE_SANITIZE="address,undefined", CMAKE_BUILD_TYPE="RelWithDebInfo")
    # Python itself is not built with them, so their libraries must be there before it starts; libstdc++ too, or
    # AddressSanitizer does not find the function that throws. What Python does not free at its end is its own affair.
    preload = " ".join(library(name) for name in ("libasan.so", "libubsan.so", "libstdc++.so"))
    options = {"LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return run_conformance(BUILD / "sanitized", extension, pytest_args, options)


def emulate(pytest_args: Sequence[str]) -> int:
    extension = build(BUILD / "emulate", HEADRACE_EMULATE_AVX512="ON")
    for isa in ("avx512", "avx512bf16", "amx"):
        print(f"The kernels of {isa}, emulated ...", flush=True)
        if status := run_conformance(BUILD / "emulated", extension, pytest_args, {"HEADRACE_ISA": isa}):
            return status
    return 0


def run_conformance(copy: Path, extension: Path, pytest_args: Sequence[str], env: dict[str, str]) -> int:
    """The conformance tests of the native backend, in a copy of the package that has this extension."""
    shutil.rmtree(copy, ignore_errors=True)
    skipped = shutil.ignore_patterns("__pycache__", "_native*.so")
    for name in ("headrace", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=skipped)
    shutil.copy2(ROOT / "pyproject.toml", copy)
    put_in_place(extension, copy)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "native", *pytest_args]
    return subprocess.run(command, cwd=copy, env=os.environ | env, check=False).returncode


def library(name: str) -> str:
    """The compiler's own."""
    command = [find_compiler(), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.native", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument(
        "--accept",
        choices=("nothing", "no-compiler", "failure"),
        default="nothing",
        help="what is no error: nothing; that this machine lacks a tool; that, or that the build fails",
    )
    building.add_argument("--stamp", type=Path, help="touched when there is nothing left to try")
    for name in ("sanitize", "emulate"):
        commands.add_parser(name, help="further arguments go to pytest; without any: tests/conformance")
    args, pytest_args = parser.parse_known_args()
    if args.command == "build":
        return build_in_place(args.accept, args.stamp)
    try:
        return (sanitize if args.command == "sanitize" else emulate)(pytest_args or ["tests/conformance"])
    except (NothingToBuildWithError, BuildFailedError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
