"""When requests are sent: arrivals as they were drawn, streams one after another."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.bench.load import closed_loop, draw_arrivals, open_loop
from tests.unit.bench.fake_clock import FakeClock

MANY = 20_000


class FakeServer:
    """Takes `seconds` for each request, and writes down when each arrived, was sent and was answered."""

    def __init__(self, seconds: float | list[float]) -> None:
        self.clock = FakeClock()
        self.seconds = seconds
        self.in_flight = self.most_in_flight = 0

    async def send(self, place: int, arrival: float) -> tuple[float, float, float]:
        sent = self.clock.now()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await self.clock.sleep(self.seconds[place] if isinstance(self.seconds, list) else self.seconds)
        self.in_flight -= 1
        return arrival - 100, sent - 100, self.clock.now() - 100


def arrivals(burstiness: float, seed: int = 0, rate: float = 4.0) -> np.ndarray:
    return np.diff(draw_arrivals(MANY, rate, burstiness, np.random.default_rng(seed)))


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_the_mean_rate_and_the_spread_are_what_was_asked_for(burstiness):
    gaps = arrivals(burstiness)
    assert len(gaps) == MANY - 1
    assert gaps.mean() == pytest.approx(0.25, rel=5 / np.sqrt(MANY * burstiness))
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_burstiness_one_is_a_poisson_process():
    """The times between arrivals are exponential: their distribution function against the formula (Kolmogorov)."""
    gaps = np.sort(arrivals(1.0))
    expected = 1 - np.exp(-4.0 * gaps)
    seen = np.arange(1, len(gaps) + 1) / len(gaps)
    assert np.abs(expected - seen).max() < 1.63 / np.sqrt(len(gaps))  # 1 % of true Poisson processes are beyond


def test_the_seed_decides_arrivals():
    assert (arrivals(1.0, seed=3) == arrivals(1.0, seed=3)).all()
    assert (arrivals(1.0, seed=3) != arrivals(1.0, seed=4)).any()


def test_an_infinite_rate_is_all_at_once():
    assert draw_arrivals(3, float("inf"), 1.0, np.random.default_rng(0)) == [0.0, 0.0, 0.0]
    assert draw_arrivals(1, 2.0, 1.0, np.random.default_rng(0)) == [0.0]


def test_arrivals_do_not_wait_for_a_server_that_stalls():
    server = FakeServer(seconds=50.0)
    found = server.clock.run(open_loop(server.send, [0.0, 1.0, 1.5], None, server.clock))
    assert found == [(0.0, 0.0, 50.0), (1.0, 1.0, 51.0), (1.5, 1.5, 51.5)]
    assert server.most_in_flight == 3


def test_latency_counts_from_the_arrival_and_not_from_the_sending():
    """No coordinated omission: who waits for a slow one's place has waited."""
    server = FakeServer(seconds=[10.0, 1.0, 1.0])
    found = server.clock.run(open_loop(server.send, [0.0, 1.0, 2.0], 1, server.clock))
    assert found == [(0.0, 0.0, 10.0), (1.0, 10.0, 11.0), (2.0, 11.0, 12.0)]


def test_a_client_that_wakes_late_sends_late_and_its_requests_have_not_arrived_later():
    class SleepyClock(FakeClock):
        async def sleep_until(self, when: float) -> None:
            await super().sleep_until(when + 0.25 if when > self.time else when)

    server = FakeServer(seconds=0.0)
    server.clock = SleepyClock()
    found = server.clock.run(open_loop(server.send, [0.0, 1.0, 1.5], None, server.clock))
    assert [(arrival, sent) for arrival, sent, _ in found] == [(0.0, 0.0), (1.0, 1.25), (1.5, 1.75)]


def test_streams_ask_when_they_are_answered():
    server = FakeServer(seconds=[3.0, 1.0, 1.0, 4.0])
    found = server.clock.run(closed_loop(server.send, 4, 2, server.clock))
    assert found == [(0.0, 0.0, 3.0), (0.0, 0.0, 1.0), (1.0, 1.0, 2.0), (2.0, 2.0, 6.0)]
    assert server.most_in_flight == 2


@pytest.mark.parametrize(("num_requests", "num_streams", "most"), [(0, 3, 0), (2, 5, 2), (20, 3, 3)])
def test_never_more_than_the_streams(num_requests, num_streams, most):
    server = FakeServer(seconds=1.0)
    found = server.clock.run(closed_loop(server.send, num_requests, num_streams, server.clock))
    assert len(found) == num_requests
    assert server.most_in_flight == most
