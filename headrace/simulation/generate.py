"""A scenario from a seed: small enough to be quick, and close enough to every edge to fall over it often."""

from __future__ import annotations

from random import Random

import msgspec

from headrace.simulation.answer import answer_alone, choice_seeds, max_total_tokens, refusal_code
from headrace.simulation.scenario import VOCAB_SIZE, RequestSpec, Scenario

replace = msgspec.structs.replace

LONGEST_ANSWER = 20


def make_scenario(seed: int) -> Scenario:
    random = Random(seed)
    scenario = make_settings(random, seed)
    if random.random() < 0.15:
        return make_storm(random, scenario)
    requests = tuple(make_request(random, scenario, name) for name in range(random.randint(5, 13)))
    scenario = replace(scenario, requests=set_arrivals(random, requests))
    return replace(scenario, num_blocks=choose_num_blocks(random, scenario))


def make_storm(random: Random, scenario: Scenario) -> Scenario:
    """Long answers in a pool for one of them: preempted again and again, until they are protected."""
    scenario = replace(
        scenario,
        block_size=random.randint(1, 3),
        max_num_seqs=random.randint(4, 8),
        budget=random.choice((8, 24)),
        patience=random.choice((4, 60, 512)),
    )
    requests = tuple(
        RequestSpec(
            name=name,
            client_index=random.randrange(scenario.num_clients),
            own=random.randint(1, 4),
            max_tokens=random.randint(LONGEST_ANSWER // 2, LONGEST_ANSWER),
            ignore_eos=True,
            output_kind="DELTA",
            priority=random.randint(0, 1) if scenario.policy == "priority" else 0,
            leaves_after=random.randint(0, 80) if random.random() < 0.2 else None,
        )
        for name in range(random.randint(5, 9))
    )
    scenario = replace(scenario, requests=set_arrivals(random, requests))
    return replace(scenario, num_blocks=blocks_needed(scenario)[-1] + random.choice((0, 0, 1, 3)))


def make_settings(random: Random, seed: int) -> Scenario:
    max_num_seqs = random.choice((1, 2, 3, 4, 6, 10))
    num_deaths = random.choice((0, 0, 0, 0, 0, 1, 1, 2))
    return Scenario(
        seed=seed,
        block_size=random.choice((1, 2, 3, 4, 5, 8, 16)),
        max_num_seqs=max_num_seqs,
        budget=max_num_seqs + random.choice((0, 1, 3, 8, 30)),
        max_model_len=random.randint(30, 64),
        caching=random.random() < 0.8,
        verify_hits=random.random() < 0.3,
        policy=random.choice(("fcfs", "priority")),
        patience=random.choice((0, 1, 4, 15, 60, 512)),
        max_passes=random.choice((0, 1, 2, 8)),
        max_prompt_logprobs=random.choice((1, 3, 64)),
        prefill_tokens_per_request=random.choice((0, 1, 4)),
        min_prefill_limit=random.choice((1, 2, 6, 64)),
        eos_token_ids=tuple(random.sample(range(VOCAB_SIZE), random.randint(0, 2))),
        num_clients=random.choice((1, 1, 2, 3)),
        max_delay=random.choice((0, 0, 1, 4, 12)),
        max_step=random.choice((1, 1, 2, 5)),
        duplicate_percent=random.choice((0, 0, 8, 30)),
        deaths=tuple(sorted(random.randint(0, 80) for _ in range(num_deaths))),
        resets=tuple(random.randint(0, 120) for _ in range(random.choice((0, 0, 1, 3)))),
        cancels=tuple(random.randint(0, 120) for _ in range(random.choice((0, 0, 0, 0, 0, 0, 1)))),
    )


def make_request(random: Random, scenario: Scenario, name: int) -> RequestSpec:
    shared = random.choice((0, 0, random.randint(1, 24)))
    max_tokens = random.randint(1, random.choice((2, 8, LONGEST_ANSWER)))
    spec = RequestSpec(
        name=name,
        client_index=random.randrange(scenario.num_clients),
        family=random.randrange(2),
        shared=shared,
        own=random.randint(0, random.choice((0, 1, 6))) if shared else random.randint(1, random.choice((1, 16))),
        continues=random.choice((0, 0, 0, random.randint(1, 10))) if shared else 0,
        max_tokens=max_tokens if random.random() < 0.97 else None,
        min_tokens=random.randint(0, max_tokens) if random.random() < 0.2 else 0,
        n=random.choice((1, 1, 1, 1, 1, 1, 2, 3)),
        ignore_eos=random.random() < 0.2,
        include_stop=random.random() < 0.2,
        output_kind=random.choice(("CUMULATIVE", "DELTA", "DELTA", "FINAL_ONLY")),
        priority=random.randint(-1, 2) if scenario.policy == "priority" else 0,
        cache_salt=random.choice((None, None, None, "a", "b")),
        prompt_logprobs=random.random() < 0.15,
        leaves_after=random.randint(0, random.choice((4, 60))) if random.random() < 0.2 else None,
        reads_every=random.choice((0, 0, 0, 1, 6, 25)),
    )
    if random.random() < 0.04:
        return spoil(random, spec, scenario)
    return with_stops(random, spec, scenario)


def spoil(random: Random, spec: RequestSpec, scenario: Scenario) -> RequestSpec:
    """A request that must be refused."""
    faults = (
        replace(spec, shared=0, own=0, continues=0),
        replace(spec, own=scenario.max_model_len),
        replace(spec, bad_token=True),
    )
    return random.choice(faults)


def with_stops(random: Random, spec: RequestSpec, scenario: Scenario) -> RequestSpec:
    """Stop ids and strings that do come, as they are taken from the answer; and some that may not."""
    wants_ids, wants_strings = random.random() < 0.2, random.random() < 0.25
    if not (wants_ids or wants_strings) or spec.num_prompt_tokens >= scenario.max_model_len:
        return spec
    answer = answer_alone(spec, scenario, choice_seeds(spec)[0])
    if wants_ids:
        spec = replace(spec, stop_token_ids=(random.choice(answer.token_ids), random.randrange(VOCAB_SIZE)))
    if wants_strings and answer.text:
        stops = [piece_of(random, answer.text) for _ in range(random.randint(1, 3))]
        spec = replace(spec, stop=tuple(dict.fromkeys(stops)))
    return spec


def piece_of(random: Random, text: str) -> str:
    start = random.randrange(len(text))
    return text[start : start + random.randint(1, 6)]


def set_arrivals(random: Random, requests: tuple[RequestSpec, ...]) -> tuple[RequestSpec, ...]:
    """In bursts, in a trickle, or both."""
    longest_pause = random.choice((0, 2, 10))
    now, arrived = 0, []
    for spec in requests:
        if random.random() < 0.5:
            now += random.randint(0, longest_pause)
        arrived.append(replace(spec, arrives=now))
    return tuple(arrived)


def choose_num_blocks(random: Random, scenario: Scenario) -> int:
    """From exactly what the largest request needs to more than all together need; sometimes less than the largest, so
    that it must be refused."""
    needs = blocks_needed(scenario)
    largest = needs[-1]
    if random.random() < 0.08:
        return random.choice(needs)
    return random.choice((largest, largest, largest + 1, largest + largest // 2, 2 * largest, 4 * largest))


def blocks_needed(scenario: Scenario) -> list[int]:
    """What each request that can be served needs at most, the largest last; not empty."""
    endless = replace(scenario, num_blocks=10**6)
    served = (spec for spec in scenario.requests if refusal_code(spec, endless) is None)
    needs = (-(-(max_total_tokens(spec, scenario) - 1) // scenario.block_size) for spec in served)
    return sorted(max(1, need) for need in needs) or [1]
