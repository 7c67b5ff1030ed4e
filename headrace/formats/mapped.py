"""Files of weights, mapped read-only: what is read comes from the system's cache without a copy."""

from __future__ import annotations

import mmap
from pathlib import Path

from headrace.errors import ModelFormatError


def map_file(path: Path) -> mmap.mmap:
    """The whole file. The map lives as long as any view into it. Raises `ModelFormatError`."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ModelFormatError(f"{path}: cannot be read: {error}") from None


def release(data: mmap.mmap, offset: int, num_bytes: int) -> None:
    """Bytes that have been read need not be a part of this process's memory any more. They stay in the system's cache,
    and whoever looks at them again finds them."""
    first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (offset + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end and hasattr(mmap, "MADV_DONTNEED"):
        data.madvise(mmap.MADV_DONTNEED, first, end - first)
