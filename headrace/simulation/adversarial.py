"""Scenarios that try to starve somebody: victims beside streams of requests that never end.

A run ends only when every victim has its answer, so one that is starved is found by the bound of `liveness.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from headrace.simulation.answer import max_total_tokens
from headrace.simulation.scenario import RequestSpec, Scenario, StreamSpec

replace = msgspec.structs.replace


def make_adversarial_scenario(seed: int) -> Scenario:
    random = Random(~seed)
    scenario = tiny_engine(random, seed)
    scenario = random.choice(ATTACKS)(random, scenario)
    if random.random() < 0.3:
        scenario = random.choice(ATTACKS)(random, scenario)  # both at once
    tightest = tightest_pool(scenario)
    enough = tightest * scenario.max_num_seqs
    pools = (tightest, tightest, tightest, tightest + 1, tightest + 4, enough)
    return replace(scenario, num_blocks=random.choice(pools))


def tiny_engine(random: Random, seed: int) -> Scenario:
    max_num_seqs = random.choice((1, 2, 2, 3, 4))
    return Scenario(
        seed=seed,
        block_size=random.choice((1, 2, 4)),
        max_num_seqs=max_num_seqs,
        budget=max_num_seqs + random.choice((0, 0, 1, 2, 8)),
        max_model_len=40,
        caching=random.random() < 0.5,
        policy=random.choice(("fcfs", "priority", "priority")),
        patience=random.choice((1, 3, 10, 30)),
        max_passes=random.choice((0, 1, 3, 8)),
        max_prompt_logprobs=random.choice((1, 2, 4, 64)),
        prefill_tokens_per_request=random.choice((0, 1, 4)),
        min_prefill_limit=random.choice((1, 2, 64)),
        max_delay=random.choice((0, 2)),
    )


def urgent_stream(random: Random, scenario: Scenario) -> Scenario:
    """Somebody more urgent is always there."""
    victim = RequestSpec(name=len(scenario.requests), own=random.randint(1, 12), max_tokens=random.randint(1, 8))
    return add(scenario, replace(victim, priority=1), random_stream(random, scenario, priority=0))


def small_past_big(random: Random, scenario: Scenario) -> Scenario:
    """One that needs almost the whole pool, and small ones that always fit what is left."""
    victim = RequestSpec(name=len(scenario.requests), own=random.randint(12, 24), max_tokens=random.randint(1, 8))
    stream = random_stream(random, scenario, priority=random.choice((0, 0, -1)))
    return add(scenario, victim, replace(stream, own=1, max_tokens=random.randint(1, 6)))


def long_prompts(random: Random, scenario: Scenario) -> Scenario:
    """Prompts that eat the budget of step after step."""
    victim = RequestSpec(name=len(scenario.requests), own=random.randint(1, 20), max_tokens=random.randint(1, 3))
    stream = random_stream(random, scenario, priority=random.choice((0, -1)))
    return add(scenario, victim, replace(stream, own=random.randint(10, 24), max_tokens=1))


def preemption_storm(random: Random, scenario: Scenario) -> Scenario:
    """Long answers in a pool that cannot hold them all, so that somebody always has to give way."""
    victim = RequestSpec(name=len(scenario.requests), own=2, max_tokens=random.randint(8, 20))
    stream = random_stream(random, scenario, priority=random.choice((0, -1, 1)))
    return add(scenario, victim, replace(stream, own=1, max_tokens=random.randint(8, 16)))


def urgent_prompt_logprobs(random: Random, scenario: Scenario) -> Scenario:
    """Urgent prompts that want all logprobs of prompts that a step may compute, as the victim does. Others beside them
    want none."""
    scenario = replace(scenario, max_num_seqs=4, budget=random.randint(6, 12), max_prompt_logprobs=random.randint(1, 3))
    victim = RequestSpec(name=len(scenario.requests), own=random.randint(8, 20), prompt_logprobs=True, priority=1)
    stream = random_stream(random, scenario, priority=0)
    stream = replace(stream, keep=random.randint(2, 3), own=random.randint(2, 12), max_tokens=1, prompt_logprobs=True)
    scenario = add(scenario, victim, stream)
    beside = replace(random_stream(random, scenario, priority=random.randint(0, 1)), keep=1, prompt_logprobs=False)
    return replace(scenario, streams=(*scenario.streams, beside))


Attack = Callable[[Random, Scenario], Scenario]
ATTACKS: tuple[Attack, ...] = (
    urgent_stream,
    small_past_big,
    long_prompts,
    preemption_storm,
    urgent_prompt_logprobs,
)


def random_stream(random: Random, scenario: Scenario, *, priority: int) -> StreamSpec:
    return StreamSpec(
        name=len(scenario.streams),
        keep=random.randint(1, scenario.max_num_seqs + 3),
        every=random.choice((1, 1, 2, 3)),
        own=random.randint(1, 8),
        shared=random.choice((0, 0, 6)),
        max_tokens=random.randint(1, 8),
        priority=priority,
        prompt_logprobs=random.random() < 0.2,
        varies=random.random() < 0.5,
    )


def add(scenario: Scenario, victim: RequestSpec, stream: StreamSpec) -> Scenario:
    """The stream first: the victim comes when the engine is busy."""
    victim = replace(victim, arrives=10)
    return replace(scenario, requests=(*scenario.requests, victim), streams=(*scenario.streams, stream))


def tightest_pool(scenario: Scenario) -> int:
    """Exactly what the largest request needs."""
    longest = max(
        *(max_total_tokens(spec, scenario) for spec in scenario.requests),
        *(stream.own + stream.shared + stream.max_tokens for stream in scenario.streams),
    )
    return max(1, -(-(longest - 1) // scenario.block_size))
