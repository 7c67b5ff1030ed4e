"""The private folder of one run: its unix sockets live there, and it goes when the run ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "headrace-"


def make_run_dir() -> Path:
    """A new folder that only this user can enter, named after this process; folders of dead runs are swept."""
    sweep_dead_runs()
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))


def remove_run_dir(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def sweep_dead_runs() -> None:
    """Remove this user's run folders whose launcher is no longer alive (killed before it could clean up)."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        with contextlib.suppress(ValueError, OSError):
            pid = int(path.name.removeprefix(PREFIX).partition("-")[0])
            if path.stat().st_uid == os.getuid() and not _is_alive(pid):
                remove_run_dir(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
