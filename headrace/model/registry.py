"""Architectures by the word in `ModelFacts.architecture`. Adding one is a file in `arch/` and a line here."""

from __future__ import annotations

import importlib
from typing import cast

from headrace.errors import UnsupportedModelError
from headrace.model.weights import Architecture

ARCHITECTURES = {
    "llama": "headrace.model.arch.llama:Llama",
}


def find_architecture(word: str) -> Architecture:
    """Raises `UnsupportedModelError` that lists the known ones."""
    if word not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"the architecture {word!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    module, _, name = ARCHITECTURES[word].partition(":")
    return cast(Architecture, getattr(importlib.import_module(module), name))
