"""The compiled kernels, if this installation has them, and the instruction set to use."""

from __future__ import annotations

import os

from headrace.errors import ConfigError

try:
    from headrace.backends.native import _native as native
except ImportError as error:
    # Built without a compiler, or for another Python: there is no such file. Built elsewhere: it may not load here.
    is_missing = isinstance(error, ModuleNotFoundError) or "cannot import name" in error.msg
    raise ConfigError(
        "this installation has no native kernels (it was built without a C++ compiler, see docs/building.md); install "
        "headrace again where one is found, or use --backend numpy"
        if is_missing
        else f"the native kernels do not load: {error}; install headrace again, or use --backend numpy",
        flag="--backend",
    ) from error

ISA_VARIABLE = "HEADRACE_ISA"


def choose_instruction_set() -> str:
    """The quickest that this processor can run, or the one that `HEADRACE_ISA` names. Raises `ConfigError`."""
    usable = native.instruction_sets()
    wanted = os.environ.get(ISA_VARIABLE)
    if not wanted:
        return usable[0]
    if wanted not in usable:
        raise ConfigError(f"{ISA_VARIABLE}={wanted} is not one of those that work here: {', '.join(usable)}")
    return wanted


__all__ = ["ISA_VARIABLE", "choose_instruction_set", "native"]
