"""Where headrace keeps what it can make again. Deleting it costs time at the next start and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "HEADRACE_CACHE"


def cache_folder() -> Path | None:
    """The folder, which may not exist yet; None for a user without a home."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder)
    try:
        return Path.home() / ".cache" / "headrace"
    except RuntimeError:
        return None
