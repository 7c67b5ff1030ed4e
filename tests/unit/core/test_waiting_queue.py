"""Who waits: the order by rank, and the overdue before it."""

from headrace.core.request import Request
from headrace.core.sched.waiting_queue import RANKS, WaitingQueue
from tests.unit.core.schedulers import make_request


def queue_of(*requests: Request, policy: str = "fcfs", patience: int = 10, step: int = 0) -> WaitingQueue:
    waiting = WaitingQueue(RANKS[policy], patience=patience)
    for request in requests:
        waiting.add(request, step)
    return waiting


def arrived(request_id: str, order: int, priority: int = 0) -> Request:
    request = make_request(request_id, priority=priority)
    request.arrival_order = order
    return request


def in_turn(waiting: WaitingQueue, step: int = 0) -> str:
    return "".join(request.request_id for request in waiting.in_turn(step))


def test_first_come_whatever_the_priority():
    waiting = queue_of(arrived("b", 1, -5), arrived("c", 2), arrived("a", 0, 5))
    assert in_turn(waiting) == "abc"
    assert len(waiting) == 3


def test_priority_then_arrival():
    waiting = queue_of(
        arrived("a", 0, 1), arrived("b", 1, 0), arrived("c", 2, 1), arrived("d", 3, -1), policy="priority"
    )
    assert in_turn(waiting) == "dbac"


def test_removing_takes_that_one():
    requests = [arrived(name, order) for order, name in enumerate("abcd")]
    for request in requests:
        waiting = queue_of(*requests)
        waiting.remove(request)
        assert in_turn(waiting) == "abcd".replace(request.request_id, "")
        assert len(waiting) == 3
        assert waiting.longest_waiting().request_id == ("b" if request.request_id == "a" else "a")


def test_who_has_waited_for_patience_steps_goes_first():
    first, urgent = arrived("a", 0, priority=9), arrived("b", 1)
    waiting = queue_of(first, policy="priority", patience=10, step=3)
    waiting.add(urgent, 4)
    assert in_turn(waiting, 12) == "ba"
    assert not waiting.is_overdue(first, 12)
    assert waiting.is_overdue(first, 13)
    assert in_turn(waiting, 13) == "ab"


def test_the_overdue_go_by_the_length_of_their_wait():
    a, b, c, d = arrived("a", 0, 1), arrived("b", 1, 0), arrived("c", 2, 5), arrived("d", 3, 0)
    waiting = queue_of(policy="priority", patience=10)
    for step, request in ((1, a), (2, c), (3, b), (5, d)):
        waiting.add(request, step)
    assert in_turn(waiting, 10) == "bdac"
    assert in_turn(waiting, 11) == "abdc"
    assert in_turn(waiting, 12) == "acbd"
    assert in_turn(waiting, 100) == "acbd"


def test_a_wait_begins_anew_when_a_request_comes_back():
    request, other = arrived("a", 0), arrived("b", 1)
    waiting = queue_of(request, other, patience=10)
    waiting.remove(request)
    waiting.add(request, 8)
    assert request.waits_since == 8
    assert waiting.longest_waiting() is other
    assert in_turn(waiting, 9) == "ab"
    assert in_turn(waiting, 12) == "ba"
    assert not waiting.is_overdue(request, 12)


def test_nobody_waits():
    assert queue_of().longest_waiting() is None
    assert in_turn(queue_of()) == ""
    assert len(queue_of()) == 0
