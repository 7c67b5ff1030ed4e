"""What the compiler has made of csrc/, and what happens where it cannot.

The kernels are compiled once for each instruction set and linked into one file. Whatever the linker merges, an inline
function of a header or of the standard library, it takes from any of them, and a processor without AVX-512 then meets
an AVX-512 instruction in a function that everybody calls. The object files of the last `make native` show whether there
is such a function; an installation without kernels has none to show.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from headrace.config.resolve import NATIVE_KERNELS
from tools import native

OBJECTS = {
    path.name.partition(".")[0]: path
    for path in native.NATIVE_BUILD.glob("CMakeFiles/_native.dir/csrc/isa/*.o")
    if find_spec(NATIVE_KERNELS)
}
# In the code for one instruction set, what would need more. Operands as objdump shows them, AT&T syntax.
FORBIDDEN = {
    "scalar": re.compile(r"^v[a-z]|%[yz]mm"),  # x86-64 has no instruction with v- but verr and verw
    "avx2": re.compile(r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2\d|3[01])"),
    "avx512": re.compile(r"^vdpbf16|^vcvtne|%tmm"),
    "avx512bf16": re.compile("%tmm"),
}
USES = {
    "avx2": re.compile("%ymm"),
    "avx512": re.compile("%zmm"),
    "avx512bf16": re.compile("^vdpbf16"),
    "amx": re.compile("^tdpbf16ps"),
}


def instructions(path: Path) -> list[str]:
    command = ["objdump", "--disassemble", "--no-show-raw-insn", path]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = [line.split("\t", 1)[1] for line in text.splitlines() if re.match(r"\s*[0-9a-f]+:\t", line)]
    assert found
    return found


def mergeable_symbols(path: Path) -> list[str]:
    """Definitions that the linker takes from any one of the objects that have them (weak, and unique)."""
    text = subprocess.run(
        ["nm", "--demangle", "--defined-only", path], capture_output=True, text=True, check=True
    ).stdout
    return [match[1] for line in text.splitlines() if (match := re.match(r"[0-9a-f]+ [VWu] (.*)", line))]


def is_own(symbol: str, isa: str) -> bool:
    return f"headrace::{isa}::" in symbol


def test_instruction_sets_keep_to_themselves() -> None:
    for isa, path in OBJECTS.items():
        code = instructions(path)
        if isa in FORBIDDEN:
            assert [line for line in code if FORBIDDEN[isa].search(line)] == [], isa
        if isa in USES:
            assert any(USES[isa].search(line) for line in code), isa


def test_instruction_sets_share_no_function() -> None:
    for isa, path in OBJECTS.items():
        symbols = mergeable_symbols(path)
        assert any(is_own(symbol, isa) for symbol in symbols), isa
        assert [symbol for symbol in symbols if not is_own(symbol, isa)] == [], isa


def test_stub_is_what_the_extension_says(repository: Path, tmp_path: Path) -> None:
    """mypy reads the stub. To write it anew: make stub."""
    if OBJECTS:
        stub = tmp_path / "_native.pyi"
        command = [
            sys.executable,
            "-m",
            "nanobind.stubgen",
            "--quiet",
            "--include-private",
            "-m",
            NATIVE_KERNELS,
            "-o",
            stub,
        ]
        subprocess.run(command, cwd=repository, check=True)
        assert (repository / native.PACKAGE / "_native.pyi").read_text() == stub.read_text()


# ---- where nothing can be built --------------------------------------------------------------------------------------


def test_the_pool_computes_every_tile_once() -> None:
    """csrc/tests/pool_test.cpp, which `make sanitize` runs under ThreadSanitizer."""
    if find_spec(NATIVE_KERNELS):
        subprocess.run([native.build(native.NATIVE_BUILD, "pool_test"), "500"], check=True)


@pytest.fixture
def source_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What tools.native takes for the source folder. An extension of older sources is in it."""
    extension = tmp_path / native.PACKAGE / native.EXTENSION
    extension.parent.mkdir(parents=True)
    extension.touch()
    monkeypatch.setattr(native, "ROOT", tmp_path)
    monkeypatch.setattr(native, "NATIVE_BUILD", tmp_path / "build")
    return tmp_path


@pytest.mark.parametrize(
    ("accept", "status", "is_over"), [("failure", 0, True), ("no-compiler", 0, True), ("nothing", 1, False)]
)
def test_without_a_compiler(
    source_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    accept: str,
    status: int,
    is_over: bool,
) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    assert native.build_in_place(accept, source_folder / "stamp") == status
    said = capsys.readouterr()
    assert "NO NATIVE KERNELS: the C++ compiler that CXX names, /bin/false, does not work" in said.err
    assert ("computes with numpy" in said.out) == is_over
    assert (source_folder / "stamp").exists() == is_over
    assert not (source_folder / native.PACKAGE / native.EXTENSION).exists()


@pytest.mark.parametrize(("accept", "status"), [("failure", 0), ("no-compiler", 1), ("nothing", 1)])
def test_sources_that_do_not_build_are_tried_again(
    source_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    accept: str,
    status: int,
) -> None:
    def fail(_: Path) -> Path:
        raise native.BuildFailedError("gemm.h:12: error")

    monkeypatch.setattr(native, "build", fail)
    assert native.build_in_place(accept, source_folder / "stamp") == status
    said = capsys.readouterr().err
    assert "NO NATIVE KERNELS: the build failed" in said
    assert "gemm.h:12: error" in said
    assert not (source_folder / "stamp").exists()
    assert not (source_folder / native.PACKAGE / native.EXTENSION).exists()


# ---- what is documented ----------------------------------------------------------------------------------------------


def test_every_environment_variable_is_documented(repository: Path) -> None:
    sources = "\n".join(path.read_text() for path in (repository / "headrace").rglob("*.py"))
    page = (repository / "docs" / "environment.md").read_text()
    variables = set(re.findall(r"HEADRACE_[A-Z0-9_]+", sources))
    assert variables
    assert variables == set(re.findall(r"`(HEADRACE_[A-Z0-9_]+)`", page))
