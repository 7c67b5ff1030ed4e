"""Starting a child process, and what a child does first.

Children are fresh interpreters running one module. They get nothing but file descriptors: a control channel, and for
the API server the listening socket. A child never outlives its launcher: the kernel tells it (PR_SET_PDEATHSIG), and
its control channel does too.
"""

from __future__ import annotations

import contextlib
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
LAUNCHER_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1

# Read by OpenBLAS when it is loaded: its idle threads sleep after 2^20 cycles, less than a millisecond, and not only
# after a tenth of a second in which they keep a core busy.
BLAS_SETTINGS = {"OPENBLAS_THREAD_TIMEOUT": "20"}


def start_child(
    module: str, title: str, extra_fds: Sequence[int] = ()
) -> tuple[subprocess.Popen[bytes], ControlChannel]:
    """Start `python -m module TITLE STARTED CONTROL_FD EXTRA_FD...`.

    Call it from the main thread: PR_SET_PDEATHSIG follows the thread that forked."""
    ours, theirs = channel_pair()
    with theirs:
        fds = (theirs.fileno(), *extra_fds)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, LAUNCHER_SIGNALS)  # inherited, until `become_child`
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, title, repr(time.monotonic()), *map(str, fds)],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                env=child_environment(),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return process, ours


def child_environment() -> dict[str, str]:
    """Our environment, in which a child finds the package that this very process runs from."""
    environment = BLAS_SETTINGS | os.environ
    if PACKAGE_PARENT in sys.path[1:]:  # the first is the folder or script that we were started from
        return environment
    path = os.environ.get("PYTHONPATH")
    return environment | {"PYTHONPATH": PACKAGE_PARENT + (os.pathsep + path if path else "")}


class LauncherLink:
    """The launcher, as a child sees it."""

    def __init__(self, channel: ControlChannel, process: str) -> None:
        """`process` is the child's own short name: "api-0", "core-0"."""
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


def become_child(argv: Sequence[str]) -> tuple[LauncherLink, list[int]]:
    """First thing in a child: title, end with the parent, leave signals to the launcher. A terminal sends SIGINT to all
    processes, and service managers SIGTERM; only the launcher acts on them.

    `argv` is [program, TITLE, STARTED, CONTROL_FD, EXTRA_FD...]. Call it when all imports are done: that phase is
    reported to the launcher. Returns the launcher and the extra descriptors."""
    title, started, control_fd, *extra_fds = argv[1:]
    setproctitle(title)
    for signum in LAUNCHER_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LAUNCHER_SIGNALS)
    for fd in (control_fd, *extra_fds):
        os.set_inheritable(int(fd), False)
    if sys.platform == "linux":
        import ctypes  # here, as the launcher has no use for it

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    launcher = LauncherLink(ControlChannel(socket.socket(fileno=int(control_fd))), title.removeprefix("headrace-"))
    launcher.tell(Phase(launcher.process, "interpreter, imports", float(started), time.monotonic()))
    return launcher, list(map(int, extra_fds))
