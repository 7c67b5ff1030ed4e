"""The extension is there, is not, or does not load; and the instruction set that is asked for."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

import headrace.backends.native as package
from headrace.config.resolve import NATIVE_KERNELS
from headrace.errors import ConfigError

EXTENSION = "headrace.backends.native.extension"


def import_extension(monkeypatch: pytest.MonkeyPatch, kernels: ModuleType | None) -> ModuleType:
    """The module, imported anew with these kernels in the place of the compiled ones. None: there are none."""
    monkeypatch.delattr(package, "_native", raising=False)
    monkeypatch.setitem(sys.modules, NATIVE_KERNELS, kernels)
    if kernels is not None:
        monkeypatch.setattr(package, "_native", kernels, raising=False)
    monkeypatch.delitem(sys.modules, EXTENSION, raising=False)
    try:
        return importlib.import_module(EXTENSION)
    finally:
        sys.modules.pop(EXTENSION, None)


@pytest.fixture
def kernels() -> ModuleType:
    kernels = ModuleType(NATIVE_KERNELS)
    kernels.instruction_sets = lambda: ["avx2", "scalar"]
    return kernels


def test_missing_kernels_name_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^--backend: this installation has no native kernels") as caught:
        import_extension(monkeypatch, None)
    assert caught.value.flag == "--backend"


def test_kernels_that_do_not_load_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == NATIVE_KERNELS:
                raise ImportError("_native.so: undefined symbol: fmaf")

    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    monkeypatch.delattr(package, "_native", raising=False)
    monkeypatch.delitem(sys.modules, NATIVE_KERNELS, raising=False)
    monkeypatch.delitem(sys.modules, EXTENSION, raising=False)
    with pytest.raises(ConfigError, match=r"^--backend: the native kernels do not load: .*undefined symbol: fmaf"):
        importlib.import_module(EXTENSION)


@pytest.mark.parametrize(("wanted", "chosen"), [(None, "avx2"), ("", "avx2"), ("avx2", "avx2"), ("scalar", "scalar")])
def test_the_quickest_or_the_one_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, kernels: ModuleType, wanted: str | None, chosen: str
) -> None:
    monkeypatch.delenv("HEADRACE_ISA", raising=False)
    if wanted is not None:
        monkeypatch.setenv("HEADRACE_ISA", wanted)
    assert import_extension(monkeypatch, kernels).choose_instruction_set() == chosen


@pytest.mark.parametrize("wanted", ["avx512", "AVX2", "sse9"])
def test_an_unknown_or_unusable_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, kernels: ModuleType, wanted: str
) -> None:
    monkeypatch.setenv("HEADRACE_ISA", wanted)
    with pytest.raises(ConfigError, match=f"^HEADRACE_ISA={wanted} is not one of those that work here: avx2, scalar$"):
        import_extension(monkeypatch, kernels).choose_instruction_set()
