"""When requests are sent. Closed loop: a number of streams, each of which sends its next request when it has the answer
to the last. Open loop: at arrivals that are drawn beforehand, whether or not the server keeps up.

In the open loop the latency of a request counts from its arrival, not from when it was sent: a server that stalls, or a
client that does, would otherwise hide the wait of all requests that came meanwhile ("coordinated omission"). In the
closed loop there is nothing before the sending.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np

T = TypeVar("T")

Send = Callable[[int, float], Awaitable[T]]  # the request's place, and its arrival


class Clock(Protocol):
    def now(self) -> float: ...

    async def sleep_until(self, when: float) -> None: ...


class RealClock:
    """Of the running event loop, but finer than its own, which may tick in milliseconds."""

    def now(self) -> float:
        return time.perf_counter()

    async def sleep_until(self, when: float) -> None:
        while (left := when - time.perf_counter()) > 0:
            await asyncio.sleep(left)


def draw_arrivals(num_requests: int, rate: float, burstiness: float, rng: np.random.Generator) -> list[float]:
    """Seconds after the start at which requests arrive, `rate` a second in the mean; the first is at 0.

    The times between are Gamma distributed, of shape `burstiness`: 1 is a Poisson process, less is burstier, more is
    steadier. An infinite rate has all of them at once."""
    if rate == float("inf"):
        return [0.0] * num_requests
    gaps = rng.gamma(burstiness, 1.0 / (rate * burstiness), num_requests - 1)
    return [0.0, *np.cumsum(gaps).tolist()]


async def open_loop(send: Send[T], arrivals: Sequence[float], max_concurrency: int | None, clock: Clock) -> list[T]:
    """Send each request at its arrival, in seconds from now. Beyond `max_concurrency` they wait, in order."""
    turn = contextlib.nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    began = clock.now()

    async def send_in_turn(place: int, arrival: float) -> T:
        async with turn:
            return await send(place, arrival)

    tasks = []
    async with asyncio.TaskGroup() as group:
        for place, offset in enumerate(arrivals):
            await clock.sleep_until(began + offset)
            tasks.append(group.create_task(send_in_turn(place, began + offset)))
    return [task.result() for task in tasks]


async def closed_loop(send: Send[T], num_requests: int, num_streams: int, clock: Clock) -> list[T]:
    """Keep `num_streams` requests under way until all have been sent."""
    results: dict[int, T] = {}
    places = iter(range(num_requests))

    async def stream() -> None:
        for place in places:
            results[place] = await send(place, clock.now())

    async with asyncio.TaskGroup() as group:
        for _ in range(min(num_streams, num_requests)):
            group.create_task(stream())
    return [results[place] for place in range(num_requests)]
