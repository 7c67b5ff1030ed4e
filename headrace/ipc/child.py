"""Starting a child process, and what a child does first.

Children are fresh interpreters running one module. They get nothing but file descriptors: a control channel, and for
the API server the listening socket. A child never outlives its launcher: the kernel tells it (PR_SET_PDEATHSIG), and
its control channel does too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from setproctitle import setproctitle

from headrace.contracts.codec import Codec, child_message_codec, launcher_message_codec
from headrace.contracts.lifecycle import ChildMessage, LauncherMessage, Phase
from headrace.ipc.control import ControlChannel, channel_pair

PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])
_PR_SET_PDEATHSIG = 1


def start_child(
    module: str, title: str, extra_fds: Sequence[int] = ()
) -> tuple[subprocess.Popen[bytes], ControlChannel]:
    """Start `python -m module TITLE STARTED CONTROL_FD EXTRA_FD...`.

    Call it from the main thread: PR_SET_PDEATHSIG follows the thread that forked."""
    ours, theirs = channel_pair()
    with theirs:
        fds = (theirs.fileno(), *extra_fds)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, title, repr(time.monotonic()), *map(str, fds)],
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            env=child_environment(),
        )
    return process, ours


def child_environment() -> dict[str, str]:
    """Our environment, with the package of this very process first on the path: all processes run the same code."""
    path = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": PACKAGE_PARENT + (os.pathsep + path if path else "")}


class Launcher:
    """The launcher, as a child sees it."""

    def __init__(self, channel: ControlChannel, process: str) -> None:
        """`process` is the child's own short name: "api", "core"."""
        self.process = process
        self._channel = channel
        self._sends: Codec[ChildMessage] = child_message_codec()
        self._receives: Codec[LauncherMessage] = launcher_message_codec()

    def receive_frame(self) -> bytes:
        """The next frame as it is; ends this process if the launcher is gone."""
        frame = self._channel.receive()
        if frame is None:
            os._exit(1)
        return frame

    def tell(self, message: ChildMessage) -> None:
        self._channel.send(self._sends.encode(message))

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Report what happens inside as a phase of the start."""
        began = time.monotonic()
        yield
        self.tell(Phase(self.process, name, began, time.monotonic()))

    def listen(self, on_message: Callable[[LauncherMessage], object]) -> None:
        """From now on call `on_message` for each message, in a thread of its own, and end this process at once when the
        launcher is gone."""

        def run() -> None:
            while True:
                on_message(self._receives.decode(self.receive_frame()))

        threading.Thread(target=run, name="launcher", daemon=True).start()


def become_child(argv: Sequence[str]) -> tuple[Launcher, list[int]]:
    """First thing in a child: title, end with the parent, leave terminal signals to the launcher.

    `argv` is [program, TITLE, STARTED, CONTROL_FD, EXTRA_FD...]. Call it when all imports are done: that phase is
    reported to the launcher. Returns the launcher and the extra descriptors."""
    title, started, control_fd, *extra_fds = argv[1:]
    setproctitle(title)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    launcher = Launcher(ControlChannel(socket.socket(fileno=int(control_fd))), process=title.split("-")[1])
    launcher.tell(Phase(launcher.process, "interpreter, imports", float(started), time.monotonic()))
    return launcher, list(map(int, extra_fds))
