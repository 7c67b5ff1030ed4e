"""Who waits, and who is next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from headrace.core.request import Request


class FCFSQueue:
    """First come, first served. Preempted requests go back to the front. Removal by id is O(1)."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def append(self, request: Request) -> None:
        self._requests[request.request_id] = request

    def push_front(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)

    def head(self) -> Request:
        """The next request to run; it stays in the queue."""
        return next(iter(self._requests.values()))

    def remove(self, request: Request) -> None:
        del self._requests[request.request_id]
