"""A clock that goes on when everybody sleeps."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")

SETTLE = 20  # turns of the event loop in which tasks that can go on have gone on


class FakeClock:
    def __init__(self) -> None:
        self.time = 100.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self.time

    async def sleep_until(self, when: float) -> None:
        if when > self.time:
            woken = asyncio.get_running_loop().create_future()
            heapq.heappush(self._sleepers, (when, next(self._order), woken))
            await woken

    async def sleep(self, seconds: float) -> None:
        await self.sleep_until(self.time + seconds)

    def run(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run(self._run(work))

    async def _run(self, work: Coroutine[object, object, T]) -> T:
        task = asyncio.create_task(work)
        while True:
            for _ in range(SETTLE):
                await asyncio.sleep(0)
            if task.done():
                return task.result()
            if not self._sleepers:
                raise AssertionError("everybody waits, and nobody sleeps")
            self.time, _, woken = heapq.heappop(self._sleepers)
            woken.set_result(None)
