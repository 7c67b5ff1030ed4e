"""Messages as bytes on links that keep their own order and no other.

A link is one direction between one front end and one life of the engine core. What is under way to a dead peer is lost;
what a dead engine has sent may still arrive, also after the first words of the next one. A message may arrive twice: at
once, or long after everything is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from headrace.simulation.clock import Clock

LATE_FACTOR = 20  # a late duplicate takes so many times the longest delay of others


class Link:
    """`deliver` gets each message; `is_open` says whether the receiver is still there."""

    def __init__(
        self,
        clock: Clock,
        random: Random,
        *,
        max_delay: int,
        deliver: Callable[[bytes], None],
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self._clock = clock
        self._random = random
        self._max_delay = max_delay
        self._deliver = deliver
        self._is_open = is_open
        self._last_arrival = 0
        self.num_under_way = 0

    def send(self, data: bytes, counters: Counter[str], *, duplicate_percent: int = 0) -> None:
        """Arrives after what was sent before it."""
        random, now = self._random, self._clock.now
        arrival = max(self._last_arrival, now + random.randint(0, self._max_delay))
        self._last_arrival = arrival
        self._plan(arrival - now, data, counters, None)
        if duplicate_percent and random.randrange(100) < duplicate_percent:
            delay = random.randint(0, self._max_delay * random.choice((1, LATE_FACTOR)))
            self._plan(arrival - now + delay, data, counters, "duplicates delivered")

    def _plan(self, delay: int, data: bytes, counters: Counter[str], name: str | None) -> None:
        self.num_under_way += 1

        def arrive() -> None:
            self.num_under_way -= 1
            if not self._is_open():
                counters["messages lost with their receiver"] += 1
                return
            if name is not None:
                counters[name] += 1
            self._deliver(data)

        self._clock.after(delay, arrive)
