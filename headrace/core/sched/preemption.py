"""Who gives way when the KV cache is full."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.request import Request

MAX_PREEMPTIONS = 3


def is_protected(request: Request) -> bool:
    """After `MAX_PREEMPTIONS` a request is no longer a victim. It then returns with all blocks it can ever need, so it
    never asks for one that only another protected request could give."""
    return request.num_preemptions >= MAX_PREEMPTIONS


def choose_victim(running: Iterable[Request]) -> Request:
    """The newest running request that is not protected. One that asks for a block is never protected, so there is
    always a victim, in the worst case the one that asks."""
    return max((r for r in running if not is_protected(r)), key=lambda r: r.arrival_order)
