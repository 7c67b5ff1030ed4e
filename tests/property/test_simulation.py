"""The simulated engine: fixed seeds, fresh seeds, seeds that try to starve somebody; and proof that it finds faults.

A fault is one line of the scheduler, the KV cache or the output path made wrong. Each must be found within a few seeds,
or the green runs mean nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest

from headrace.contracts.engine import EngineCoreEventType, EngineCoreOutput
from headrace.core import request as core_request
from headrace.core.engine_core import EngineCore
from headrace.core.kv_cache.block_pool import BlockPool
from headrace.core.kv_cache.manager import KVCacheManager
from headrace.core.request import Request, RequestStatus
from headrace.core.sched.scheduler import Scheduler
from headrace.core.sched.waiting_queue import WaitingQueue
from headrace.errors import InvalidParameterError
from headrace.frontend.output_processor import OutputProcessor
from headrace.frontend.stop_strings import StopMatcher
from headrace.simulation.adversarial import make_adversarial_scenario
from headrace.simulation.generate import make_scenario
from headrace.simulation.scenario import RequestSpec, Scenario, StreamSpec, literal
from headrace.simulation.shrink import shrink, violation_of
from headrace.simulation.world import run

NUM_FIXED, NUM_FRESH, NUM_ADVERSARIAL = 2000, 500, 500
JOBS = 2
ENOUGH_SEEDS = 200  # to find any fault


def simulate(*arguments: str) -> None:
    """In processes of its own; what it prints is the test's output."""
    command = [sys.executable, "-m", "headrace.simulation", f"--jobs={JOBS}", *arguments]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(finished.stdout)
    assert finished.returncode == 0, finished.stdout


@pytest.mark.slow
def test_fixed_seeds():
    simulate(f"--seeds={NUM_FIXED}")


@pytest.mark.slow
def test_fresh_seeds():
    first = int.from_bytes(os.urandom(6), "little")
    print(f"python -m headrace.simulation --seeds={NUM_FRESH} --first={first}")
    simulate(f"--seeds={NUM_FRESH}", f"--first={first}")


@pytest.mark.slow
def test_nobody_is_starved():
    simulate(f"--seeds={NUM_ADVERSARIAL}", "--adversarial")


def test_a_seed_is_a_scenario_and_a_scenario_a_run():
    assert make_scenario(7) == make_scenario(7)
    assert run(make_scenario(7)) == run(make_scenario(7))
    assert run(make_adversarial_scenario(7)) == run(make_adversarial_scenario(7))


def test_everything_happens():
    """The seeds reach what they are meant to reach: a counter at zero is a blind spot."""
    counted = sum((run(make_scenario(seed)) for seed in range(300)), start=run(make_scenario(300)))
    for state in ("queued", "prefilling", "decoding", "preempted", "unknown"):
        assert counted[f"aborts: {state} during the forward"], state
    for name in (
        "displaced by priority",
        "duplicate requests",
        "duplicates delivered",
        "engine cores lost",
        "messages lost with their receiver",
        "messages of an engine that was dead",
        "outputs dropped as unknown",
        "overdue admissions",
        "passes",
        "passes for want of logprobs of prompts",
        "preemptions",
        "refusals",
        "requests cancelled",
        "requests complete",
        "requests left",
        "requests protected",
        "requests refused",
        "requests that came with output",
        "resets answered False",
        "resets answered True",
        "steps with as many tokens of prompts as decodes allow",
        "stopped by a string",
        "tokens found in the prefix cache",
    ):
        assert counted[name], name


# ---- faults ----------------------------------------------------------------------------------------------------------


def block_freed_twice(patch: pytest.MonkeyPatch) -> None:
    release = BlockPool.release

    def broken(self: BlockPool, block_ids: list[int]) -> None:
        release(self, [*block_ids, *block_ids[-1:]])

    patch.setattr(BlockPool, "release", broken)


def blocks_kept_after_an_abort(patch: pytest.MonkeyPatch) -> None:
    free = KVCacheManager.free

    def broken(self: KVCacheManager, request: Request) -> None:
        if request.num_output_tokens != 1:
            free(self, request)

    patch.setattr(KVCacheManager, "free", broken)


def hit_registered_before_it_is_computed(patch: pytest.MonkeyPatch) -> None:
    allocate = KVCacheManager.allocate

    def broken(self: KVCacheManager, request: Request, *arguments: object, **options: object) -> bool:
        done = allocate(self, request, *arguments, **options)
        if done:
            computed, request.num_computed_tokens = request.num_computed_tokens, request.num_tokens
            self.register_computed(request)
            request.num_computed_tokens = computed
        return done

    patch.setattr(KVCacheManager, "allocate", broken)


def hit_with_the_last_token_too(patch: pytest.MonkeyPatch) -> None:
    """Then nothing is left to be computed."""
    find = KVCacheManager.find_computed_blocks

    def broken(self: KVCacheManager, request: Request) -> list[int]:
        found = find(self, request)
        if len(found) < len(request.block_hashes):
            next_block = self.pool.lookup(request.block_hashes[len(found)])
            found += [] if next_block is None else [next_block]
        return found

    patch.setattr(KVCacheManager, "find_computed_blocks", broken)


def salt_forgotten(patch: pytest.MonkeyPatch) -> None:
    root_hash = core_request.root_hash
    patch.setattr(core_request, "root_hash", lambda cache_salt: root_hash(None))


def output_lost(patch: pytest.MonkeyPatch) -> None:
    update = Scheduler.update

    def broken(self: Scheduler, *arguments: object) -> dict[int, list[EngineCoreOutput]]:
        outputs = update(self, *arguments)
        return {client: [o for o in news if o.first_index != 2] for client, news in outputs.items()}

    patch.setattr(Scheduler, "update", broken)


def last_word_lost(patch: pytest.MonkeyPatch) -> None:
    add_request = EngineCore.add_request

    def broken(self: EngineCore, request: object) -> None:
        if isinstance(request, Request):
            add_request(self, request)

    patch.setattr(EngineCore, "add_request", broken)


def duplicate_answered_with_an_error(patch: pytest.MonkeyPatch) -> None:
    add_request = Scheduler.add_request

    def broken(self: Scheduler, request: Request) -> None:
        num_duplicates = self.num_duplicates
        add_request(self, request)
        if self.num_duplicates > num_duplicates:
            raise InvalidParameterError("This request is known.")

    patch.setattr(Scheduler, "add_request", broken)


def wheel_off_by_one(patch: pytest.MonkeyPatch) -> None:
    start_decoding = Scheduler._start_decoding

    def broken(self: Scheduler, request: Request) -> None:
        self._step += 1
        start_decoding(self, request)
        self._step -= 1

    patch.setattr(Scheduler, "_start_decoding", broken)


def protected_without_its_blocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Scheduler, "_blocks_needed", lambda self, request: (self.kv.blocks_for(request.num_tokens), 0), raising=True
    )


def stale_tokens_after_a_preemption(patch: pytest.MonkeyPatch) -> None:
    """The last token is not sent with a request that returns."""
    update = Scheduler.update

    def broken(self: Scheduler, *arguments: object) -> dict[int, list[EngineCoreOutput]]:
        outputs = update(self, *arguments)
        for request in self._requests.values():
            if request.status is RequestStatus.PREEMPTED and request.num_output_tokens > 1:
                request.all_token_ids.pop()
        return outputs

    patch.setattr(Scheduler, "update", broken)


def patience_without_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WaitingQueue, "is_overdue", lambda self, request, step: False)


def passed_without_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_may_be_passed", lambda self, request: not self._waiting.is_overdue(request, self._step))


def token_taken_in_twice(patch: pytest.MonkeyPatch) -> None:
    take_in = OutputProcessor._take_in

    def broken(self: OutputProcessor, choice: object, output: EngineCoreOutput, *arguments: object) -> bool:
        output.first_index = len(choice.token_ids)
        return take_in(self, choice, output, *arguments)

    patch.setattr(OutputProcessor, "_take_in", broken)


def held_text_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StopMatcher, "flush", lambda self: "")


def cached_blocks_of_a_prompt_whose_logprobs_are_wanted(patch: pytest.MonkeyPatch) -> None:
    find = KVCacheManager.find_computed_blocks

    def broken(self: KVCacheManager, request: Request) -> list[int]:
        collected, request.prompt_logprobs = request.prompt_logprobs, None
        found = find(self, request)
        request.prompt_logprobs = collected
        return found

    patch.setattr(KVCacheManager, "find_computed_blocks", broken)


def prompt_logprobs_kept_at_a_preemption(patch: pytest.MonkeyPatch) -> None:
    preempt = Scheduler._preempt

    def broken(self: Scheduler, request: Request, preempted: list[str]) -> None:
        collected = request.prompt_logprobs
        preempt(self, request, preempted)
        request.prompt_logprobs = collected

    patch.setattr(Scheduler, "_preempt", broken)


def prefill_limit_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_prefill_budget", lambda self, num_decoding: self._budget - num_decoding)


def no_prefill_beside_decodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_prefill_budget", lambda self, num_decoding: 0 if num_decoding else self._budget)


def started_without_prompt_logprobs(patch: pytest.MonkeyPatch) -> None:
    """With a place and blocks, and nothing to compute."""
    give_tokens = Scheduler._give_tokens

    def broken(self: Scheduler, request: Request, num_scheduled: dict[str, int], limit: int) -> int:
        is_none_left = request.prompt_logprobs is not None and self._prompt_logprobs_left == 0
        return 0 if is_none_left else give_tokens(self, request, num_scheduled, limit)

    patch.setattr(Scheduler, "_give_tokens", broken)
    patch.setattr(Scheduler, "_has_logprobs_for", lambda self, request: True)


def no_prompt_logprobs_for_those_behind(patch: pytest.MonkeyPatch) -> None:
    """A prompt takes all that are left, but for the half of a more urgent one."""

    def broken(self: Scheduler, prefilling: Iterable[Request], num_scheduled: dict[str, int], budget: int) -> int:
        self._prompt_logprobs_left = self._max_prompt_logprobs
        urgent = next(self._waiting.in_turn(self._step), None)
        for request in sorted(prefilling, key=self._rank):
            limit = budget if request.prompt_logprobs is None else min(budget, self._prompt_logprobs_left)
            if limit > 1 and urgent is not None and urgent.priority < request.priority:
                limit //= 2
            budget -= self._give_tokens(request, num_scheduled, limit) if limit else 0
        return budget

    patch.setattr(Scheduler, "_continue_prefills", broken)


FAULTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    block_freed_twice,
    blocks_kept_after_an_abort,
    hit_registered_before_it_is_computed,
    hit_with_the_last_token_too,
    salt_forgotten,
    output_lost,
    last_word_lost,
    duplicate_answered_with_an_error,
    wheel_off_by_one,
    protected_without_its_blocks,
    stale_tokens_after_a_preemption,
    patience_without_end,
    passed_without_end,
    token_taken_in_twice,
    held_text_forgotten,
    cached_blocks_of_a_prompt_whose_logprobs_are_wanted,
    prompt_logprobs_kept_at_a_preemption,
    prefill_limit_forgotten,
    no_prefill_beside_decodes,
    started_without_prompt_logprobs,
)


def first_failing_seed() -> int | None:
    return next((seed for seed in range(ENOUGH_SEEDS) if violation_of(make_scenario(seed)) is not None), None)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch):
    fault(monkeypatch)
    seed = first_failing_seed()
    assert seed is not None
    print(seed, violation_of(make_scenario(seed)))


def test_starvation_is_found(monkeypatch: pytest.MonkeyPatch):
    """By the bound alone: with the strictest rule switched off, an endless stream of urgent requests does starve."""
    monkeypatch.setattr("headrace.simulation.liveness.LivenessWatch._started", started_unchecked)
    patience_without_end(monkeypatch)
    assert "a request waits beyond the bound" in rules_broken_by_adversaries()


def test_starvation_of_a_prompt_in_progress_is_found(monkeypatch: pytest.MonkeyPatch):
    """By the bound alone, too: all logprobs of prompts go to urgent ones, and more of these start."""
    monkeypatch.setattr("headrace.simulation.liveness.LivenessWatch._check_starts", lambda self, step: None)
    started_without_prompt_logprobs(monkeypatch)
    no_prompt_logprobs_for_those_behind(monkeypatch)
    assert "a prompt in progress got no token for too long" in rules_broken_by_adversaries()


def test_a_prompt_that_leaves_nothing_to_those_behind_is_found(monkeypatch: pytest.MonkeyPatch):
    no_prompt_logprobs_for_those_behind(monkeypatch)
    assert "a step starts somebody and has no token for one that runs" in rules_broken_by_adversaries()


def rules_broken_by_adversaries() -> Iterator[str]:
    violations = (violation_of(make_adversarial_scenario(seed)) for seed in range(ENOUGH_SEEDS))
    return (violation.rule for violation in violations if violation is not None)


def started_unchecked(watch: object, request_id: str, num_cached: int) -> None:
    request = watch._requests[request_id]
    request.waits, request.began, request.num_cached = False, watch._step, request.num_cached or num_cached
    request.events.append(EngineCoreEventType.SCHEDULED)


# ---- shrinking -------------------------------------------------------------------------------------------------------


def test_a_failure_shrinks_to_a_literal_that_still_fails(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        duplicate_answered_with_an_error(patch)
        scenario = make_scenario(first_failing_seed())
        small, violation = shrink(scenario, violation_of(scenario))
        text = literal(small)
        names = {"Scenario": Scenario, "RequestSpec": RequestSpec, "StreamSpec": StreamSpec}
        again = eval(text, names)  # noqa: S307 (what a test would hold)
        assert again == small
        assert violation_of(again).rule == violation.rule
    assert len(small.requests) <= 2
    assert len(text) < 500, text
    assert violation_of(small) is None  # the fault is gone


# ---- regressions -----------------------------------------------------------------------------------------------------


def test_min_tokens_holds_for_the_flushed_end_too():
    """A character that stays incomplete becomes U+FFFD at the end; before min_tokens that is no stop string either."""
    spec = RequestSpec(name=7, family=1, shared=10, own=2, max_tokens=6, min_tokens=7, stop=("\ufffd",))
    run(Scenario(seed=2754, requests=(spec,), num_blocks=3, block_size=6, max_num_seqs=1, budget=1, max_model_len=18))
