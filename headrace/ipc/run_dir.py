"""The private folder of one run: its unix sockets live there, and it goes when the run ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.errors import StartupError

PREFIX = "headrace-"
MAX_FOLDER_BYTES = 64  # the kernel allows about 107 bytes for a unix socket's path, our names included
FALLBACK = "/tmp"  # noqa: S108 (what is made there is a folder with mode 0700)


@contextmanager
def run_dir() -> Iterator[Path]:
    """A new folder that only this user can enter. Its launcher holds a lock in it; a folder whose lock nobody holds is
    left over from a run that was killed, and is swept. Raises `StartupError` if there is no place for it."""
    parent = socket_folder()
    sweep_dead_runs(parent)
    try:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        with (path / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)
    except OSError as error:
        raise StartupError(f"no folder for sockets can be made in {parent}: {error.strerror or error}") from None


def socket_folder() -> str:
    """The temporary folder, or /tmp where its path is too long for unix sockets."""
    try:
        folder = tempfile.gettempdir()
    except OSError as error:
        raise StartupError(f"there is no temporary folder: {error.strerror or error}") from None
    return folder if len(os.fsencode(folder)) <= MAX_FOLDER_BYTES else FALLBACK


def sweep_dead_runs(parent: str) -> None:
    """Remove this user's run folders whose lock can be had."""
    for path in Path(parent).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if path.stat().st_uid != os.getuid():
                continue
            with (path / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
