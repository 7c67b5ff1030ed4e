"""A child process as its parent sees it: its control channel, what it has said, and what became of it."""

from __future__ import annotations

import signal
import subprocess

from headrace.contracts.codec import launcher_message_codec
from headrace.contracts.lifecycle import LauncherMessage
from headrace.ipc.child import start_child

STOP_S = 5.0  # a drained child has this long to end


class Child:
    def __init__(self, name: str, module: str, extra_fds: tuple[int, ...] = ()) -> None:
        """Start `python -m module`. Call it from the main thread (see `start_child`)."""
        self.name = name
        self.process, self.channel = start_child(module, name, extra_fds)
        self.is_ready = False
        self.failure: str | None = None  # its last word

    def send(self, message: LauncherMessage) -> None:
        self.channel.send(launcher_message_codec().encode(message))

    def wait(self, timeout: float) -> int | None:
        """Its exit status, None if it still runs after `timeout` seconds."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def cause_of_death(self) -> str:
        status = self.wait(STOP_S)
        if self.failure is not None:
            return f"{self.name}: {self.failure}"
        if status is not None and status < 0:
            return f"{self.name} was killed by {signal.Signals(-status).name}"
        return f"{self.name} ended with status {status}"
