"""Short cuts of `make endurance`: the same clients for a few seconds. How fast anything is, is not judged here."""

from __future__ import annotations

import asyncio

import pytest

from tests.system.endurance import FLAGS, leaks, run_large_prompts, run_streams
from tests.system.tiny_server import Postcondition, start_tiny_server

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tiny_model):
    server = start_tiny_server(tiny_model, *FLAGS)
    try:
        yield server.wait_ready()
    finally:
        server.close()


@pytest.fixture(autouse=True)
def _nothing_is_left(server):
    postcondition = Postcondition(server)
    yield
    postcondition.check()


def test_500_streams_of_which_some_are_left_alone(server):
    ends = asyncio.run(run_streams(server, num_streams=500, seconds=4))
    assert ends["whole"] > 300
    assert ends["went away"] > 30


def test_h11_large_prompts_are_refused_or_served_and_health_answers_meanwhile(server):
    statuses, latencies = asyncio.run(run_large_prompts(server, seconds=0))
    assert sum(statuses.values()) == 14
    assert latencies


def test_h13_many_requests_leave_nothing_behind(server):
    """Memory that a request leaves behind would show: a kilobyte for each is as much as this allows."""
    assert not leaks(server, num_requests=3000)
