"""A failing scenario made small: whatever can be left out or made simpler, and it still fails in the same way, is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from headrace.simulation.scenario import RequestSpec, Scenario
from headrace.simulation.violation import Violation
from headrace.simulation.world import run

replace = msgspec.structs.replace

T = TypeVar("T", Scenario, RequestSpec)

MAX_RUNS = 2000

PLAIN = Scenario()
PLAIN_REQUEST = RequestSpec(name=0)


def violation_of(scenario: Scenario) -> Violation | None:
    try:
        run(scenario)
    except Violation as violation:
        return violation
    return None


def shrink(scenario: Scenario, violation: Violation, *, max_runs: int = MAX_RUNS) -> tuple[Scenario, Violation]:
    """The smallest scenario found that breaks the same rule, and how it does."""
    num_runs = 0
    improved = True
    while improved and num_runs < max_runs:
        improved = False
        for candidate in candidates(scenario):
            num_runs += 1
            found = violation_of(candidate)
            if found is not None and found.rule == violation.rule:
                scenario, violation, improved = candidate, found, True
                break  # start anew: large cuts first
            if num_runs >= max_runs:
                break
    return scenario, violation


def candidates(scenario: Scenario) -> Iterator[Scenario]:
    """Simpler scenarios, the greatest simplifications first."""
    for name in ("requests", "streams", "deaths", "resets", "cancels", "eos_token_ids"):
        for shorter in shorter_tuples(getattr(scenario, name)):
            yield replace(scenario, **{name: shorter})
    yield from simpler_fields(scenario, PLAIN, ("caching", "verify_hits", "policy", "num_clients"))
    yield from simpler_fields(scenario, PLAIN, ("duplicate_percent", "max_delay", "max_step", "patience", "max_passes"))
    yield from simpler_fields(scenario, PLAIN, ("max_prompt_logprobs",))
    yield from simpler_fields(scenario, PLAIN, ("prefill_tokens_per_request", "min_prefill_limit"))
    for place, spec in enumerate(scenario.requests):
        for simpler in simpler_requests(spec):
            yield replace(scenario, requests=(*scenario.requests[:place], simpler, *scenario.requests[place + 1 :]))
    for name in ("num_blocks", "max_num_seqs", "budget", "max_model_len", "block_size"):
        for value in smaller_numbers(getattr(scenario, name), 1):
            yield replace(scenario, **{name: value})
    for name in ("deaths", "resets", "cancels"):
        yield from earlier(scenario, name)


def simpler_requests(spec: RequestSpec) -> Iterator[RequestSpec]:
    lengths = ("arrives", "own", "shared", "continues", "max_tokens", "min_tokens", "n", "reads_every", "leaves_after")
    for name in spec.__struct_fields__:
        if name not in ("name", *lengths):
            yield from simpler_fields(spec, PLAIN_REQUEST, (name,))
    for name in lengths:
        value, plain = getattr(spec, name), getattr(PLAIN_REQUEST, name)
        if value is None:
            continue
        if plain is None:
            yield replace(spec, **{name: None})
        for number in smaller_numbers(value, plain or 0):
            yield replace(spec, **{name: number})


def simpler_fields(thing: T, plain: T, names: tuple[str, ...]) -> Iterator[T]:
    for name in names:
        if getattr(thing, name) != getattr(plain, name):
            yield replace(thing, **{name: getattr(plain, name)})


def smaller_numbers(value: int, least: int) -> Iterator[int]:
    """The least, then ever nearer to the value."""
    distance = value - least
    while distance > 0:
        yield value - distance
        distance //= 2


def shorter_tuples(items: tuple[object, ...]) -> Iterator[tuple[object, ...]]:
    """Without a half, a quarter, ..., one of them."""
    size = len(items)
    while size:
        for start in range(0, len(items), size):
            yield items[:start] + items[start + size :]
        size //= 2


def earlier(scenario: Scenario, name: str) -> Iterator[Scenario]:
    times: tuple[int, ...] = getattr(scenario, name)
    for place, time in enumerate(times):
        for number in smaller_numbers(time, 0):
            yield replace(scenario, **{name: (*times[:place], number, *times[place + 1 :])})
