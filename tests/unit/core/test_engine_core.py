"""The engine core over the hash worker: every request's tokens are what it gets alone, whatever happens around it."""

from __future__ import annotations

import random

import pytest

from headrace.contracts.engine import FinishReason, UtilityCall, UtilityOutput
from headrace.simulation.hash_model import hash_tokens
from tests.unit.core.engines import Engine


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(length)]


def test_single_request():
    engine = Engine()
    prompt = prompt_of(10)
    engine.add("a", prompt, 20)
    engine.run()
    assert engine.tokens("a") == hash_tokens(prompt, 20)
    assert engine.finish_reason("a") is FinishReason.LENGTH
    engine.check_at_rest()


@pytest.mark.parametrize("budget", [8, 9, 16, 64])
@pytest.mark.parametrize("caching", [True, False])
def test_batched_equals_alone(budget, caching):
    engine = Engine(budget=budget, caching=caching, num_blocks=256)
    prompts = {f"r{i}": prompt_of(1 + 7 * i, seed=i % 3) for i in range(20)}
    for request_id, prompt in prompts.items():
        engine.add(request_id, prompt, 25)
    engine.run()
    for request_id, prompt in prompts.items():
        assert engine.tokens(request_id) == hash_tokens(prompt, 25), request_id
    assert all(s.total_num_scheduled_tokens <= budget for s in engine.executor.steps)
    engine.check_at_rest()


def test_decodes_run_in_every_step_beside_a_long_prompt():
    engine = Engine(budget=8, max_num_seqs=8)
    engine.add("short", prompt_of(3), 30)
    engine.step()
    engine.add("long", prompt_of(100, seed=1), 1)
    for _ in range(20):
        engine.step()
    steps = engine.executor.steps[1:]
    assert all(s.num_scheduled_tokens.get("short") == 1 for s in steps[:20])
    assert steps[0].num_scheduled_tokens["long"] == 7


def test_preemption_changes_no_token():
    engine = Engine(num_blocks=12, block_size=4, max_num_seqs=4)
    prompts = {f"r{i}": prompt_of(9, seed=i) for i in range(4)}
    for request_id, prompt in prompts.items():
        engine.add(request_id, prompt, 25)
    engine.run()
    for request_id, prompt in prompts.items():
        assert engine.tokens(request_id) == hash_tokens(prompt, 25)
    assert engine.core.scheduler.stats().num_preemptions > 0
    engine.check_at_rest()


def test_no_request_is_preempted_more_than_three_times():
    engine = Engine(num_blocks=9, block_size=2, max_num_seqs=8, caching=False)
    for i in range(8):
        engine.add(f"r{i}", prompt_of(3, seed=i), 14)
    preempted: dict[str, int] = {}
    while engine.core.has_work:
        engine.step()
        for request_id in engine.executor.steps[-1].preempted_req_ids:
            preempted[request_id] = preempted.get(request_id, 0) + 1
    assert preempted
    assert max(preempted.values()) <= 3
    for i in range(8):
        assert engine.tokens(f"r{i}") == hash_tokens(prompt_of(3, seed=i), 14)
    engine.check_at_rest()


def test_prefix_cache_hit_gives_the_same_tokens():
    engine = Engine()
    prompt = prompt_of(18)
    for request_id in ("first", "second", "third"):
        engine.add(request_id, prompt, 6)
        engine.run()
        assert engine.tokens(request_id) == hash_tokens(prompt, 6)
    assert engine.outputs["first"][0].num_cached_tokens == 0
    assert engine.outputs["second"][0].num_cached_tokens == 16
    assert engine.outputs["third"][0].num_cached_tokens == 16
    stats = engine.core.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (54, 32)


def test_a_fully_cached_prompt_still_computes_its_last_token():
    engine = Engine(block_size=4)
    prompt = prompt_of(16)
    engine.add("first", prompt, 1)
    engine.run()
    engine.add("second", prompt, 1)
    engine.run()
    assert engine.outputs["second"][0].num_cached_tokens == 12
    assert engine.tokens("second") == engine.tokens("first")


def test_output_is_reused_by_the_next_turn():
    engine = Engine(block_size=4)
    prompt = prompt_of(6)
    engine.add("first", prompt, 11)
    engine.run()
    engine.add("second", prompt + engine.tokens("first"), 3)
    engine.run()
    assert engine.outputs["second"][0].num_cached_tokens == 16  # 6 + 11 known, 16 computed by the first
    assert engine.tokens("second") == hash_tokens(prompt + engine.tokens("first"), 3)


def test_salts_share_nothing():
    engine = Engine()
    prompt = prompt_of(18)
    for request_id, salt in (("a", "x"), ("b", "y"), ("c", None), ("d", "x")):
        engine.add(request_id, prompt, 1, cache_salt=salt)
        engine.run()
    cached = [engine.outputs[request_id][0].num_cached_tokens for request_id in "abcd"]
    assert cached == [0, 0, 0, 16]


def test_eos_and_stop_ids():
    prompt = prompt_of(5)
    answer = hash_tokens(prompt, 10)
    engine = Engine(eos_token_ids=(answer[4],))
    engine.add("eos", prompt, 10)
    engine.add("ignored", prompt, 10, ignore_eos=True)
    engine.add("stop", prompt, 10, stop_token_ids=(answer[2],))
    engine.run()
    assert engine.tokens("eos") == answer[:5]
    assert (engine.finish_reason("eos"), engine.outputs["eos"][-1].stop_reason) == (FinishReason.STOP, None)
    assert engine.tokens("ignored") == answer
    assert engine.tokens("stop") == answer[:3]
    assert (engine.finish_reason("stop"), engine.outputs["stop"][-1].stop_reason) == (FinishReason.STOP, answer[2])


def test_a_stop_at_the_last_token_is_a_stop():
    prompt = prompt_of(5)
    answer = hash_tokens(prompt, 4)
    engine = Engine()
    engine.add("a", prompt, 4, stop_token_ids=(answer[3],))
    engine.run()
    assert engine.finish_reason("a") is FinishReason.STOP


def test_length_is_bounded_by_the_context():
    engine = Engine(max_model_len=16)
    engine.add("a", prompt_of(10), 100)
    engine.run()
    assert len(engine.tokens("a")) == 6
    assert engine.finish_reason("a") is FinishReason.LENGTH


def test_a_request_with_output_goes_on_where_it_was():
    prompt = prompt_of(9)
    answer = hash_tokens(prompt, 12)
    engine = Engine()
    engine.add("moved", prompt, 12, output=answer[:7])
    engine.run()
    tokens = [t for output in engine.outputs["moved"] for t in output.new_token_ids]
    assert engine.outputs["moved"][0].first_index == 7
    assert tokens == answer[7:]
    engine.check_at_rest()


@pytest.mark.parametrize("steps_before", [0, 1, 2, 5])
def test_abort_in_every_state(steps_before):
    engine = Engine(num_blocks=10, max_num_seqs=2, budget=8)
    prompts = {f"r{i}": prompt_of(9, seed=i) for i in range(4)}
    for request_id, prompt in prompts.items():
        engine.add(request_id, prompt, 12)
    for _ in range(steps_before):
        engine.step()
    for request_id in ("r0", "r3", "r0", "never-seen"):
        engine.core.abort_requests([request_id])
    engine.run()
    for request_id in ("r1", "r2"):
        assert engine.tokens(request_id) == hash_tokens(prompts[request_id], 12)
    assert engine.finish_reason("r0") is engine.finish_reason("r3") is FinishReason.ABORT
    engine.check_at_rest()


def test_abort_during_the_forward_takes_effect_in_the_same_step():
    engine = Engine()
    engine.add("a", prompt_of(4), 50)
    engine.add("b", prompt_of(4, seed=1), 5)
    engine.step()
    outputs = engine.core.step(lambda: engine.core.abort_requests(["a"]))
    reasons = {o.request_id: o.finish_reason for o in outputs[0].outputs}
    assert reasons == {"a": FinishReason.ABORT, "b": None}
    engine.outputs["b"] += [o for o in outputs[0].outputs if o.request_id == "b"]
    engine.run()
    assert engine.tokens("b") == hash_tokens(prompt_of(4, seed=1), 5)
    engine.check_at_rest()


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "code", "words"),
    [
        pytest.param([], 4, "invalid_value", "empty", id="A07-empty"),
        pytest.param([-1], 4, "invalid_value", "between 0 and 999", id="A05-negative"),
        pytest.param([-1] * 9, 4, "invalid_value", "between 0 and 999", id="A05-whole-blocks"),
        pytest.param([2**40] * 9, 4, "invalid_value", "between 0 and 999", id="A06-whole-blocks"),
        pytest.param([1000], 4, "invalid_value", "between 0 and 999", id="A06-vocab"),
        pytest.param([1] * 512, 4, "context_length_exceeded", "512", id="A24-context"),
        pytest.param([1] * 200, 100, "kv_capacity_exceeded", "299", id="G11-kv-pool"),
    ],
)
def test_what_can_never_run_is_refused(prompt, max_tokens, code, words):
    engine = Engine(num_blocks=64, block_size=4)
    engine.add("bad", prompt, max_tokens)
    engine.add("good", prompt_of(3), 3)
    engine.run()
    (refusal,) = engine.outputs["bad"]
    assert refusal.finish_reason is FinishReason.ERROR
    assert refusal.error_code == code
    assert words in refusal.error_message
    assert engine.tokens("good") == hash_tokens(prompt_of(3), 3)
    engine.check_at_rest()


@pytest.mark.parametrize(
    "params",
    [{"logit_bias": {1000: 1.0}}, {"allowed_token_ids": (-1,)}, {"stop_token_ids": (2**40,), "min_tokens": 1}],
    ids=lambda params: next(iter(params)),
)
def test_ids_beside_the_vocabulary_are_refused_wherever_they_are(params):
    """The front end has looked already; but a kernel would write beside its row."""
    engine = Engine()
    engine.add("bad", prompt_of(3), 4, **params)
    engine.run()
    (refusal,) = engine.outputs["bad"]
    assert (refusal.finish_reason, refusal.error_code) == (FinishReason.ERROR, "invalid_value")
    engine.check_at_rest()


def test_a_request_that_comes_twice_is_one_request():
    engine = Engine()
    prompt = prompt_of(5)
    engine.add("a", prompt, 8)
    engine.step()
    first = engine.outputs["a"].copy()
    engine.add("a", prompt_of(5, seed=1), 8)
    engine.outputs["a"] = first
    engine.run()
    assert engine.tokens("a") == hash_tokens(prompt, 8)
    assert engine.finish_reason("a") is FinishReason.LENGTH
    assert engine.core.scheduler.num_duplicates == 1
    engine.check_at_rest()


def test_a_step_says_nothing_to_a_request_that_came_anew_while_it_ran():
    """Aborted and sent again with the output that it had, as fail-over does, while the forward runs."""
    engine = Engine()
    prompt = prompt_of(5)
    answer = hash_tokens(prompt, 8)
    engine.add("a", prompt, 8)
    engine.step()

    def send_again() -> None:
        engine.core.abort_requests(["a"])
        engine.add("a", prompt, 8, output=answer[:1])

    engine.core.step(send_again)
    engine.run()
    assert [t for output in engine.outputs["a"] for t in output.new_token_ids] == answer[1:]
    engine.check_at_rest()


def test_first_come_first_served():
    engine = Engine(max_num_seqs=1)
    for request_id in "abc":
        engine.add(request_id, prompt_of(4), 3)
    order = []
    while engine.core.has_work:
        engine.step()
        order += [new.req_id for new in engine.executor.steps[-1].scheduled_new_reqs]
    assert order == ["a", "b", "c"]


def test_reset_prefix_cache_only_at_rest():
    engine = Engine()
    prompt = prompt_of(18)
    engine.add("a", prompt, 3)
    engine.step()
    assert not engine.core.reset_prefix_cache()
    engine.run()
    assert engine.core.reset_prefix_cache()
    engine.add("b", prompt, 3)
    engine.run()
    assert engine.outputs["b"][0].num_cached_tokens == 0


@pytest.mark.parametrize("seed", range(40))
def test_random_traffic(seed):
    """Arrivals, shared prefixes, aborts and a pool that is often too small: tokens are right, and nothing is left."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 2, 4, 16])
    max_num_seqs = rng.choice([1, 3, 8])
    engine = Engine(
        block_size=block_size,
        num_blocks=rng.randint(-(-60 // block_size), 200),
        max_num_seqs=max_num_seqs,
        budget=rng.randint(max_num_seqs, 40),
        caching=rng.random() < 0.7,
    )
    prompts, aborted = {}, set()
    stems = [prompt_of(25, seed=i) for i in range(3)]
    for i in range(25):
        prompt = rng.choice(stems)[: rng.randint(1, 25)] + prompt_of(rng.randint(0, 10), seed=rng.randrange(5))
        lengths = prompts[f"r{i}"] = (prompt, rng.randint(1, 24))
        engine.add(f"r{i}", *lengths)
        for _ in range(rng.choice([0, 0, 1, 3])):
            if engine.core.has_work:
                engine.step()
                check_blocks(engine)
        if rng.random() < 0.2:
            victim = f"r{rng.randrange(i + 1)}"
            engine.core.abort_requests([victim])
            aborted.add(victim)
    while engine.core.has_work:
        engine.step()
        check_blocks(engine)
    for request_id, (prompt, max_tokens) in prompts.items():
        expected = hash_tokens(prompt, max_tokens)
        tokens = engine.tokens(request_id)
        assert tokens == expected[: len(tokens)], request_id
        assert engine.finish_reason(request_id) is not None
        assert tokens == expected or request_id in aborted
    engine.check_at_rest()


def check_blocks(engine: Engine) -> None:
    """Reference counts are what the block tables say; free and used make the whole."""
    scheduler = engine.core.scheduler
    pool = scheduler.kv.pool
    counts = [0] * pool.num_blocks
    for request in scheduler._requests.values():
        for block_id in request.block_ids:
            counts[block_id] += 1
    assert counts == pool._ref_counts
    assert {i for i, count in enumerate(counts) if count == 0} == set(pool._free)
    assert all(pool._hashes[block_id] == block_hash for block_hash, block_id in pool._cached.items())


def test_utility_calls_are_a_closed_table_and_a_failure_is_only_an_answer(monkeypatch):
    engine = Engine()
    assert engine.core.call_utility(UtilityCall(3, 0, "reset_prefix_cache")).utility_output == UtilityOutput(
        3, None, True
    )
    unknown = engine.core.call_utility(UtilityCall(4, 0, "__init__")).utility_output
    assert unknown.failure_message == "no such method: __init__"
    monkeypatch.setattr(engine.core.scheduler, "reset_prefix_cache", lambda: 1 / 0)
    failed = engine.core.call_utility(UtilityCall(5, 0, "reset_prefix_cache")).utility_output
    assert failed.failure_message == "reset_prefix_cache failed: ZeroDivisionError"
