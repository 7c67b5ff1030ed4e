"""How long a client is waited for."""

from __future__ import annotations

import asyncio

import pytest

from headrace.frontend.http.http_protocol import Watch

SOON = 0.001  # seconds; what follows is decided by what is measured, not by how long it takes


@pytest.mark.parametrize(
    ("measured", "num_looks"),
    [
        pytest.param([7, 7], 1, id="nothing moves"),
        pytest.param([7, 6, 5, 4, 4], 4, id="it moves, and stops"),
        pytest.param([0, 1000, 1001, 1001], 3, id="in either direction"),
    ],
)
def test_a_watch_gives_up_when_nothing_has_moved_between_two_looks(measured, num_looks):
    async def scenario() -> None:
        given_up = asyncio.Event()
        values = iter([value for value in measured for _ in range(2)][1:])  # a look that goes on measures twice
        num_measured = 0

        def measure() -> int:
            nonlocal num_measured
            num_measured += 1
            return next(values)

        Watch(SOON, measure, given_up.set).start()
        await given_up.wait()
        assert num_measured == 2 * num_looks

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_watch_that_was_stopped_gives_nobody_up():
    async def scenario() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        stopped, other = Watch(SOON, lambda: 0, first.set), Watch(2 * SOON, lambda: 0, second.set)
        stopped.start()
        stopped.start()
        stopped.stop()
        other.start()
        await second.wait()
        assert not first.is_set()

    asyncio.run(asyncio.wait_for(scenario(), 20))
