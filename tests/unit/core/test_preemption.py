"""Who gives way, as values in and values out."""

import pytest

from headrace.core.request import Request
from headrace.core.sched.preemption import choose_displaced, choose_victim, is_protected
from headrace.core.sched.waiting_queue import RANKS
from tests.unit.core.schedulers import make_request


def running(request_id: str, order: int, priority: int = 0, num_preemptions: int = 0, blocks: int = 2) -> Request:
    request = make_request(request_id, priority=priority)
    request.arrival_order = order
    request.num_preemptions = num_preemptions
    request.block_ids = list(range(blocks))
    return request


def displaced(priority: int, requests: list[Request], *, num_places: int = 0, num_blocks: int = 0) -> str:
    chosen = choose_displaced(
        make_request("w", priority=priority),
        requests,
        num_places=num_places,
        num_blocks=num_blocks,
        freed_by=lambda request: len(request.block_ids),
    )
    return "".join(request.request_id for request in chosen)


def test_three_preemptions_protect():
    assert [is_protected(running("a", 0, num_preemptions=n)) for n in range(5)] == [False, False, False, True, True]


def test_first_come_the_victim_is_the_newest():
    requests = [running("a", 0, priority=9), running("c", 2), running("b", 1)]
    assert choose_victim(requests, RANKS["fcfs"]).request_id == "c"


def test_priority_the_victim_is_the_newest_of_the_least_urgent():
    requests = [running("a", 0, 5), running("b", 1, 5), running("c", 2, 0), running("d", 3, 4)]
    assert choose_victim(requests, RANKS["priority"]).request_id == "b"


def test_the_victim_is_never_protected():
    requests = [running("a", 0), running("b", 1, num_preemptions=3), running("c", 2, num_preemptions=4)]
    assert choose_victim(requests, RANKS["fcfs"]).request_id == "a"


REQUESTS = [running("a", 0, 1), running("b", 1, 3), running("c", 2, 2), running("d", 3, 3, blocks=1)]


@pytest.mark.parametrize(
    ("priority", "num_places", "num_blocks", "expected"),
    [
        (0, 0, 0, ""),  # it lacks nothing
        (0, -1, -5, ""),
        (0, 1, 0, "d"),  # the newest of the least urgent
        (0, 0, 1, "d"),
        (0, 0, 2, "db"),
        (0, 1, 2, "db"),
        (0, 2, 1, "db"),
        (0, 3, 0, "dbc"),
        (0, -1, 4, "dbc"),
        (0, 4, 7, "dbca"),
        (0, 5, 0, ""),  # all of them would not be enough
        (0, 0, 8, ""),
        (1, 3, 0, "dbc"),
        (1, 4, 0, ""),  # one as urgent does not give way
        (3, 1, 0, ""),
        (2, 2, 0, "db"),
    ],
)
def test_as_few_as_needed_and_never_in_vain(priority, num_places, num_blocks, expected):
    assert displaced(priority, REQUESTS, num_places=num_places, num_blocks=num_blocks) == expected


def test_a_protected_request_is_not_displaced():
    requests = [running("a", 0, 5, num_preemptions=3), running("b", 1, 4)]
    assert displaced(0, requests, num_places=1) == "b"
    assert displaced(0, requests, num_places=2) == ""
