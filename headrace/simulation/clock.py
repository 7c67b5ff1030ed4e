"""Time as a number, and what is to happen at which."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Clock:
    """Events in order of time; those of the same time in the order in which they were planned. Units are ticks."""

    def __init__(self) -> None:
        self.now = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, delay: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), action))

    def seconds(self) -> float:
        """For time stamps: a tick is a millisecond."""
        return self.now / 1000.0

    def run(self) -> None:
        """Until nothing is planned any more."""
        while self._events:
            self._run_next()

    def advance(self, ticks: int) -> None:
        """Let time pass inside an event: what is due meanwhile happens now."""
        end = self.now + ticks
        while self._events and self._events[0][0] <= end:
            self._run_next()
        self.now = end

    def _run_next(self) -> None:
        self.now, _, action = heapq.heappop(self._events)
        action()
