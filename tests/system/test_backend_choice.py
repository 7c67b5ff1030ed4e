"""What a server says of its backend, with native kernels and in an installation that was built without them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from headrace.config.resolve import NATIVE_KERNELS
from tests.system.server import Server

pytestmark = pytest.mark.system

NO_KERNELS = "no native kernels are installed, so numpy computes the model"


@pytest.fixture(scope="module")
def without_kernels(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as an installation without a compiler has it."""
    folder = tmp_path_factory.mktemp("installation")
    ignored = shutil.ignore_patterns("_native*.so", "__pycache__")
    shutil.copytree(repository / "headrace", folder / "headrace", ignore=ignored)
    return folder


def test_the_start_says_what_computes(start_server: Callable[..., Server]) -> None:
    server = start_server("--num-threads", "2").wait_ready()
    if find_spec(NATIVE_KERNELS):
        isa = os.environ.get("HEADRACE_ISA") or ""
        assert server.wait_for_line(f"backend     native ({isa}").endswith("2 threads")
        assert NO_KERNELS not in server.stderr
    else:
        assert NO_KERNELS in server.stderr


def test_without_kernels_numpy_computes_and_the_start_says_so(
    start_server: Callable[..., Server], without_kernels: Path
) -> None:
    server = start_server("--num-threads", "1", folder=without_kernels).wait_ready()
    assert server.wait_for_line("backend     numpy, float32, 1 thread")
    assert NO_KERNELS in server.stderr


def test_numpy_by_choice_is_no_warning(start_server: Callable[..., Server]) -> None:
    server = start_server("--backend", "numpy", "--num-threads", "1").wait_ready()
    assert server.wait_for_line("backend     numpy, float32, 1 thread")
    assert NO_KERNELS not in server.stderr


def test_native_without_kernels_is_refused(start_server: Callable[..., Server], without_kernels: Path) -> None:
    server = start_server("--backend", "native", folder=without_kernels)
    assert server.wait_end() == 1
    assert "--backend: this installation has no native kernels" in server.stderr
    assert "Traceback" not in server.stderr


def test_an_unknown_instruction_set_is_refused(start_server: Callable[..., Server]) -> None:
    if find_spec(NATIVE_KERNELS):
        server = start_server(env={"HEADRACE_ISA": "sse9"})
        assert server.wait_end() == 1
        assert "HEADRACE_ISA=sse9 is not one of those that work here: " in server.stderr
        assert "Traceback" not in server.stderr
