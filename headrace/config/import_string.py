"""Choices are tables from a word to an import string, so that nothing unused is imported."""

from __future__ import annotations

import importlib
from typing import Any


def load_by_name(import_string: str) -> Any:
    """`package.module:name` to the object."""
    module, _, name = import_string.partition(":")
    return getattr(importlib.import_module(module), name)
