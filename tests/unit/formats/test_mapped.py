from __future__ import annotations

import mmap
import random
import re
from pathlib import Path

import pytest

from headrace.errors import ModelFormatError
from headrace.formats.mapped import map_file, release

PAGE = mmap.PAGESIZE
SMAPS = Path("/proc/self/smaps")  # of Linux


def resident_bytes(path: Path) -> int:
    """Of this process's maps of a file."""
    maps = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", SMAPS.read_text(), flags=re.MULTILINE)
    ours = [text for text in maps if str(path) in text]
    return sum(
        1024 * int(kilobytes) for text in ours for kilobytes in re.findall(r"^Rss: +(\d+) kB$", text, re.MULTILINE)
    )


def test_what_is_released_is_no_longer_resident(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(64 * PAGE))
    data = map_file(path)
    assert sum(data[::PAGE]) == 0
    if SMAPS.exists():
        assert resident_bytes(path) == 64 * PAGE
    release(data, 0, 64 * PAGE)
    if SMAPS.exists():
        assert resident_bytes(path) == 0


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 5 * PAGE), (1, PAGE), (PAGE - 1, 2), (7, 0), (PAGE + 1, 3 * PAGE), (4 * PAGE, PAGE)]
)
def test_released_bytes_are_still_there(tmp_path: Path, offset: int, size: int) -> None:
    content = random.Random(1).randbytes(5 * PAGE)
    path = tmp_path / "weights"
    path.write_bytes(content)
    data = map_file(path)
    view = memoryview(data)[offset : offset + size]
    release(data, offset, size)
    assert view == content[offset : offset + size]
    assert data[:] == content


@pytest.mark.parametrize("content", [None, b""])
def test_a_file_that_cannot_be_mapped(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "weights"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelFormatError, match=r"weights: cannot be read: "):
        map_file(path)
