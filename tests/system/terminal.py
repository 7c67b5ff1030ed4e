"""A program in a terminal of its own: what it has written so far, and keys to press."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
import threading

from tests.system.server import PATIENCE_S, REPOSITORY, wait_until

# The program's standard input becomes the terminal where its Ctrl-C comes from.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """Ends only what it has started."""

    def __init__(self, *command: str) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 100))
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *command],
            cwd=REPOSITORY,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"TERM": "dumb"},
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # the program has closed its end
                return
            if not data:
                return
            self.text += data.decode(errors="replace")

    def press(self, keys: str) -> int:
        """Returns where in `text` is what comes after."""
        place = len(self.text)
        os.write(self._ours, keys.encode())
        return place

    def wait_for(self, pattern: str, place: int = 0) -> int:
        """Wait until the text from `place` on matches; the place behind it."""

        def find() -> re.Match[str] | None:
            found = re.compile(pattern).search(self.text, place)
            if found is None and self.process.poll() is not None:
                self._reader.join(PATIENCE_S)
                found = re.compile(pattern).search(self.text, place)
                assert found, f"it ended with {self.process.returncode}: {self.text}"
            return found

        return wait_until(find).end()

    def wait_end(self) -> int:
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(PATIENCE_S)
        os.close(self._ours)
