"""Requests of whole-server tests, and a client that streams in the background."""

from __future__ import annotations

import threading

from tests.system.server import Server, wait_until

TITLES = {"headrace-launcher", "headrace-api-0", "headrace-core-0"}
COMPLETION = {"model": "tiny", "prompt": "Hello", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
LONG = COMPLETION | {"max_tokens": 200, "stream": True}


class Stream(threading.Thread):
    """A streamed request in the background: its chunks, and how it ended."""

    def __init__(self, server: Server, body: dict = LONG) -> None:
        super().__init__(daemon=True)
        self.chunks: list[str] = []
        self.error: Exception | None = None
        self._server, self._body = server, body
        self.start()
        wait_until(lambda: self.chunks or self.error)

    def run(self) -> None:
        try:
            for chunk in self._server.stream("/v1/completions", self._body):
                self.chunks.append(chunk)
        except Exception as error:
            self.error = error
