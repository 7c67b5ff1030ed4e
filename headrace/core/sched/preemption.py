"""Who gives way: when the KV cache is full, and when somebody more urgent waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.core.request import Request
from headrace.core.sched.waiting_queue import Rank

MAX_PREEMPTIONS = 3


def is_protected(request: Request) -> bool:
    """After `MAX_PREEMPTIONS` a request is no longer a victim. It then returns with all blocks it can ever need, so it
    never asks for one that only another protected request could give."""
    return request.num_preemptions >= MAX_PREEMPTIONS


def choose_victim(running: Iterable[Request], rank: Callable[[Request], Rank]) -> Request:
    """The running request of the worst rank that is not protected: with fcfs the newest, with priority the newest of
    the least urgent. One that asks for a block is never protected, so there is always a victim, in the worst case the
    one that asks."""
    return max((request for request in running if not is_protected(request)), key=rank)


def choose_displaced(
    waiting: Request,
    running: Iterable[Request],
    *,
    num_places: int,
    num_blocks: int,
    freed_by: Callable[[Request], int],
) -> list[Request]:
    """Who has to give way so that `waiting` can start: the least urgent first, as few as needed, and only requests that
    are strictly less urgent. Empty if nobody has to, or if all of them together would not be enough.

    `num_places` and `num_blocks` are what it lacks; 0 or less is nothing."""
    less_urgent = [r for r in running if r.priority > waiting.priority and not is_protected(r)]
    less_urgent.sort(key=lambda r: (r.priority, r.arrival_order), reverse=True)
    displaced: list[Request] = []
    for request in less_urgent:
        if num_places <= 0 and num_blocks <= 0:
            break
        displaced.append(request)
        num_places -= 1
        num_blocks -= freed_by(request)
    return displaced if num_places <= 0 and num_blocks <= 0 else []
