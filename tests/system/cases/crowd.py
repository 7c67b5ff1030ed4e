"""Eight healthy clients who stream without a pause, and notice if a word of theirs is not as it always is."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType

from tests.system.cases.client import COMPLETIONS, post
from tests.system.server import Server, wait_until

SIZE = 8
LENGTH = 40  # tokens of an answer


def body(place: int) -> dict[str, object]:
    return {
        "prompt": f"{place} green bottles",
        "max_tokens": LENGTH,
        "temperature": place % 2,
        "seed": place,
        "ignore_eos": True,
    }


def truth(server: Server) -> list[str]:
    """What each of them hears, asked alone."""
    return [post(server, COMPLETIONS, body(place)).json()["choices"][0]["text"] for place in range(SIZE)]


class Crowd:
    """In a `with`: all are streaming when it begins, and until it ends."""

    def __init__(self, server: Server, expected: Sequence[str]) -> None:
        self._server = server
        self._expected = expected
        self._is_over = threading.Event()
        self._num_begun = [0] * SIZE
        self._heard: list[list[str]] = [[] for _ in range(SIZE)]
        self._threads = [threading.Thread(target=self._stream, args=(place,), daemon=True) for place in range(SIZE)]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: all(self._num_begun) or not all(thread.is_alive() for thread in self._threads))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        if error is None:
            for place, heard in enumerate(self._heard):
                assert heard
                assert set(heard) == {self._expected[place]}

    def _stream(self, place: int) -> None:
        while not self._is_over.is_set():
            self._num_begun[place] += 1
            events = post(self._server, COMPLETIONS, body(place) | {"stream": True}).events()
            self._heard[place].append("".join(event["choices"][0]["text"] for event in events))
