"""Cases of other engines, each as a scenario of the simulated engine. That tokens are those of the request alone, that
every request ends lawfully and that nothing is left holds in every run; what a case adds is said in its test.

The same cases over HTTP, on a server: tests/system/test_scheduling.py and test_requests.py.
"""

from __future__ import annotations

import msgspec
import pytest

from headrace.simulation.answer import answer_alone
from headrace.simulation.scenario import RequestSpec, Scenario
from headrace.simulation.world import World, run


def crowd(count: int, *, first_name: int = 100, arrives: int = 0) -> tuple[RequestSpec, ...]:
    return tuple(
        RequestSpec(name=first_name + i, arrives=arrives + i, own=1 + i % 7, max_tokens=1 + i % 5) for i in range(count)
    )


def test_g01_the_same_prompt_four_times_with_others_in_between():
    """A hit gives what the miss gave, and from the second time on all whole blocks but the last token's are found."""
    again = tuple(RequestSpec(name=7 + i, arrives=100 * i, shared=20, own=0, max_tokens=10) for i in range(4))
    counters = run(Scenario(requests=again + crowd(12, arrives=50), verify_hits=True))
    assert counters["tokens found in the prefix cache"] >= 3 * 16


def test_g06_alone_and_among_sixteen_others():
    one = RequestSpec(name=1, own=9, max_tokens=20, ignore_eos=True)
    run(Scenario(requests=(one,), max_num_seqs=32))
    run(Scenario(requests=(one, *crowd(16)), max_num_seqs=32))


def test_g07_seeds():
    """The same seed draws the same, alone and in a batch; another seed draws something else."""
    scenario = Scenario(max_num_seqs=16)
    spec = RequestSpec(name=1, own=9, max_tokens=20)
    assert answer_alone(spec, scenario, 7) == answer_alone(spec, scenario, 7) != answer_alone(spec, scenario, 8)
    run(msgspec.structs.replace(scenario, requests=(msgspec.structs.replace(spec, n=3), *crowd(8))))


@pytest.mark.parametrize("caching", [True, False])
def test_g08_a_pool_too_small_for_two_long_requests(caching):
    """Both end; the watch sees to it that nobody is preempted a fourth time."""
    both = tuple(RequestSpec(name=i, own=10, max_tokens=40) for i in range(2))
    counters = run(Scenario(requests=both, num_blocks=14, caching=caching))
    assert counters["preemptions"] > 0
    assert counters["requests complete"] == 2


def test_g11_a_prompt_that_fits_the_context_but_not_the_pool():
    """Refused when it arrives, and the one behind it is served."""
    counters = run(
        Scenario(requests=(RequestSpec(name=1, own=40, max_tokens=4), RequestSpec(name=2, own=4)), num_blocks=8)
    )
    assert (counters["requests refused"], counters["requests complete"]) == (1, 1)


@pytest.mark.parametrize("settings", [{"max_num_seqs": 4}, {"num_blocks": 17}], ids=["places", "blocks"])
def test_g12_an_urgent_request_meets_a_full_house(settings):
    """It is started within two steps of its arrival: one may be under way."""
    low = tuple(RequestSpec(name=i, own=8, max_tokens=40, priority=5) for i in range(4))
    urgent = RequestSpec(name=9, arrives=6, own=8, max_tokens=2, priority=0)
    world = World(Scenario(requests=(*low, urgent), policy="priority", **settings))
    world.run()
    assert world.counters["displaced by priority"] > 0
    urgent_ids = world._users[-1].request_ids
    steps = world._engine.executor.steps
    started = next(s.step for s in steps if any(new.req_id in urgent_ids for new in s.scheduled_new_reqs))
    assert started <= urgent.arrives + 2  # a step takes one tick here


def test_h03_an_abort_and_then_late_events_for_it():
    """Users leave at every moment, and every message comes twice, some long after everything is over."""
    leaving = tuple(RequestSpec(name=i, own=8, max_tokens=30, leaves_after=i) for i in range(30))
    counters = run(Scenario(requests=leaving + crowd(4), duplicate_percent=100, max_delay=3, max_step=3))
    assert counters["requests left"] > 10
    assert counters["duplicates delivered"] > 100
    assert counters["outputs dropped as unknown"] > 0
