"""Who waits, in which order, and for how long.

The order is by rank: arrival for "fcfs", (priority, arrival) for "priority". Two rules bound how long a request can be
held up by others that go before it; docs/scheduling.md says what follows from them.

- *Overdue*: one that has waited `patience` steps goes before everybody who is not overdue.
- *Passed*: one that does not fit now may be passed by requests behind it, but at most `max_passes` times.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator

from headrace.core.request import Request

Rank = tuple[int, int]

RANKS: dict[str, Callable[[Request], Rank]] = {
    "fcfs": lambda request: (0, request.arrival_order),
    "priority": lambda request: (request.priority, request.arrival_order),
}


class WaitingQueue:
    """Ordered by rank, lowest first. Adding and removing cost a comparison or so and a move of pointers."""

    def __init__(self, rank: Callable[[Request], Rank], *, patience: int) -> None:
        """`patience` is in steps."""
        self._rank = rank
        self._patience = patience
        self._ranked: list[tuple[Rank, Request]] = []
        self._by_age: OrderedDict[str, Request] = OrderedDict()  # in the order in which they began to wait

    def __len__(self) -> int:
        return len(self._ranked)

    def add(self, request: Request, step: int) -> None:
        """`step` is the current one: the wait begins."""
        request.waits_since = step
        self._by_age[request.request_id] = request
        insort(self._ranked, (self._rank(request), request), key=_rank_of)

    def remove(self, request: Request) -> None:
        del self._by_age[request.request_id]
        del self._ranked[bisect_left(self._ranked, self._rank(request), key=_rank_of)]  # no two ranks are equal

    def in_turn(self, step: int) -> Iterator[Request]:
        """Whose turn it is: the overdue, longest wait first, then the others by rank. Not to be used any more once the
        queue has changed."""
        overdue: set[str] = set()
        for request in self._by_age.values():
            if not self.is_overdue(request, step):
                break
            overdue.add(request.request_id)
            yield request
        for _, request in self._ranked:
            if request.request_id not in overdue:
                yield request

    def is_overdue(self, request: Request, step: int) -> bool:
        return step - request.waits_since >= self._patience

    def longest_waiting(self) -> Request | None:
        """The request that has waited for the most steps."""
        return next(iter(self._by_age.values()), None)


def _rank_of(entry: tuple[Rank, Request]) -> Rank:
    return entry[0]
