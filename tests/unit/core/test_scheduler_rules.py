"""One test for each rule of docs/scheduling.md: whose turn it is, what it gets, what comes back."""

import pytest

from headrace.contracts.engine import FinishReason
from headrace.contracts.model_runner import ModelRunnerOutput, TokenLogprobs
from headrace.core.request import Request, RequestStatus
from headrace.errors import InvalidParameterError, InvariantError, KVCapacityError
from tests.unit.core.schedulers import EOS, PLAIN, PREEMPTED, QUEUED, SCHEDULED, Steps, started

# ---- the step: budget and blocks -------------------------------------------------------------------------------------


def test_a_prompt_is_spread_over_steps_and_decodes_go_first():
    steps = Steps(budget=6)
    steps.add("a", 4)
    steps.step()
    steps.add("b", 12)
    counts = [steps.step().num_scheduled_tokens for _ in range(4)]
    assert counts == [{"a": 1, "b": 5}, {"a": 1, "b": 5}, {"a": 1, "b": 2}, {"a": 1, "b": 1}]
    assert list(counts[0]) == ["a", "b"]


def test_what_one_prompt_leaves_of_the_budget_is_the_next_ones():
    steps = Steps(budget=10)
    for request_id in ("a", "b", "c"):
        steps.add(request_id, 8)
    counts = [steps.step().num_scheduled_tokens for _ in range(3)]
    assert counts == [{"a": 8, "b": 2}, {"a": 1, "b": 6, "c": 3}, {"a": 1, "b": 1, "c": 5}]


def test_prompts_go_on_by_rank_within_the_budget():
    steps = Steps(budget=8)
    steps.add("a", 12)
    steps.step()
    steps.add("b", 20)
    assert steps.step().num_scheduled_tokens == {"a": 4, "b": 4}
    assert steps.step().num_scheduled_tokens == {"a": 1, "b": 7}
    steps.add("c", 4)
    assert steps.step().num_scheduled_tokens == {"a": 1, "b": 7}  # nothing is left for c
    assert steps.step().num_scheduled_tokens == {"a": 1, "b": 2, "c": 4}


def test_places_are_bounded():
    steps = Steps(max_num_seqs=2, budget=32)
    for request_id in ("a", "b", "c"):
        steps.add(request_id, 4, 3)
    assert [started(step) for step in steps.run()] == [["a", "b"], [], [], ["c"], [], [], []]


def test_places_are_bounded_when_one_comes_free():
    steps = Steps(max_num_seqs=3)
    for request_id, max_tokens in zip("abcdef", (2, 6, 6, 3, 3, 3), strict=True):
        steps.add(request_id, 4, max_tokens)
    for _ in range(12):
        steps.step()
        assert steps.scheduler.stats().num_running_reqs <= 3
    assert steps.scheduler.stats().num_running_reqs == 0


def test_first_come_first_served():
    steps = Steps(max_num_seqs=1)
    for request_id, priority in zip("abc", (3, 0, 1), strict=True):
        steps.add(request_id, 4, 2, priority=priority)
    assert [request_id for step in steps.run() for request_id in started(step)] == ["a", "b", "c"]


def test_the_most_urgent_first_and_of_those_the_oldest():
    steps = Steps(max_num_seqs=1, policy="priority")
    for request_id, priority in zip("abcd", (3, 1, 0, 1), strict=True):
        steps.add(request_id, 4, 2, priority=priority)
    assert [request_id for step in steps.run() for request_id in started(step)] == ["c", "b", "d", "a"]


def test_a_block_is_added_in_the_step_that_first_needs_it():
    """A prompt of 3 and blocks of 4: positions 4, 8 and 12 open one, in steps 3, 7 and 11."""
    steps = Steps()
    steps.add("a", 3, 14)
    grown = {}
    for step in steps.run():
        if step.scheduled_cached_reqs.req_ids:
            assert step.scheduled_cached_reqs.req_ids == ["a"]
            grown[step.step] = step.scheduled_cached_reqs.new_block_ids
    assert grown == {3: [[[1]]], 7: [[[2]]], 11: [[[3]]]}


@pytest.mark.parametrize("prompt", range(1, 10))
def test_no_request_has_a_block_that_it_does_not_need(prompt):
    steps = Steps()
    request = steps.add("a", prompt, 20)
    while True:
        steps.step()
        if request.status.is_finished:
            break
        assert len(request.block_ids) == -(-request.num_computed_tokens // 4)


def test_what_a_new_request_brings_is_sent_with_it():
    steps = Steps()
    steps.add("first", [1, 2, 3, 4, 5], 1)
    steps.run()
    request = steps.add("a", [1, 2, 3, 4, 5, 6], 8, output=[7, 8, 9])
    (new,) = steps.step().scheduled_new_reqs
    assert (new.req_id, new.prompt_token_ids, new.output_token_ids) == ("a", [1, 2, 3, 4, 5, 6], [7, 8, 9])
    assert (new.num_computed_tokens, new.sampling_params) == (4, request.sampling_params)
    assert new.block_ids == [request.block_ids]
    assert len(request.block_ids) == 3


def test_blocks_are_findable_as_soon_as_they_are_full():
    """Of a prompt in its midst, and of output while the request still runs."""
    steps = Steps(budget=8)
    request = steps.add("a", list(range(12)), 20)
    steps.step()
    assert len(steps.scheduler.kv.find_computed_blocks(request)) == 2
    for _ in range(5):
        steps.step()
    assert request.num_computed_tokens == 16
    steps.step()  # grows: the block before is full
    other = steps.add("b", [*range(12), PLAIN, PLAIN, PLAIN, PLAIN, 99], 1)
    steps.step()
    assert other.num_cached_tokens == 16


# ---- prompts beside decodes ------------------------------------------------------------------------------------------


def beside_decodes(num_decoding: int, **settings: object) -> Steps:
    """Requests `d0`, `d1`, ... that decode from the next step on."""
    steps = Steps(**({"num_blocks": 256, "max_num_seqs": 16, "budget": 128} | settings))
    for i in range(num_decoding):
        steps.add(f"d{i}", 4, 30)
    steps.step()
    return steps


@pytest.mark.parametrize(
    ("num_decoding", "settings", "expected"),
    [
        (0, {}, 128),
        (1, {}, 10),
        (2, {}, 12),
        (3, {}, 16),
        (6, {}, 28),
        (6, {"max_num_seqs": 7}, 28),
        (6, {"prefill_tokens_per_request": 0}, 10),
        (6, {"prefill_tokens_per_request": 128}, 122),
        (6, {"budget": 24}, 18),  # what is left of the budget is less
        (1, {"min_prefill_limit": 64}, 64),
    ],
)
def test_beside_decodes_prompts_get_so_many_tokens_for_each_request(num_decoding, settings, expected):
    steps = beside_decodes(num_decoding, **({"min_prefill_limit": 10} | settings))
    steps.add("long", 400, 2)
    for _ in range(2):  # when it starts, and when it goes on
        counts = steps.step().num_scheduled_tokens
        assert counts == dict.fromkeys((f"d{i}" for i in range(num_decoding)), 1) | {"long": expected}


def test_the_limit_is_for_all_prompts_together_and_they_keep_their_order():
    steps = beside_decodes(1, min_prefill_limit=10, prefill_tokens_per_request=0)
    for request_id, num_tokens in (("a", 14), ("b", 4), ("c", 9), ("d", 5)):
        steps.add(request_id, num_tokens)
    counts = [steps.step().num_scheduled_tokens for _ in range(4)]
    assert counts == [
        {"d0": 1, "a": 10},
        {"d0": 1, "a": 4, "b": 4, "c": 2},
        {"d0": 1, "a": 1, "b": 1, "c": 7, "d": 3},
        {"d0": 1, "a": 1, "b": 1, "c": 1, "d": 2},
    ]


def test_those_that_wait_count_too_up_to_as_many_as_may_run():
    """If only those that decode did, few of them would let few prompts through, and would stay few."""
    steps = beside_decodes(1, min_prefill_limit=1, max_num_seqs=4)
    for i in range(2):
        steps.add(f"w{i}", 40)
    assert steps.step().num_scheduled_tokens == {"d0": 1, "w0": 12}
    for i in range(2, 9):
        steps.add(f"w{i}", 40)
    assert steps.step().num_scheduled_tokens == {"d0": 1, "w0": 16}


def test_a_long_prompt_ends_beside_decodes_and_has_the_whole_budget_after_them():
    steps = Steps(num_blocks=256, budget=128, prefill_tokens_per_request=0, min_prefill_limit=1)
    steps.add("d", 4, 4)
    steps.step()
    steps.add("long", 200, 2)
    assert [step.num_scheduled_tokens.get("long", 0) for step in steps.run()] == [1, 1, 1, 128, 69, 1, 0]


def test_cached_tokens_do_not_count_against_the_limit():
    steps = Steps(num_blocks=256, budget=128, min_prefill_limit=10, prefill_tokens_per_request=0)
    steps.add("stem", list(range(100, 141)), 20)
    steps.step()
    steps.add("a", [*range(100, 140), 1, 2, 3], 8)
    steps.add("b", 20)
    assert steps.step().num_scheduled_tokens == {"stem": 1, "a": 3, "b": 7}


def test_what_is_computed_again_after_a_preemption_counts_as_a_prompt():
    steps = beside_decodes(3, min_prefill_limit=5, prefill_tokens_per_request=0, caching=False)
    for _ in range(4):
        steps.step()
    steps.scheduler._preempt(steps.requests["d2"], [])
    counts = [steps.step().num_scheduled_tokens["d2"] for _ in range(3)]
    assert counts == [5, 4, 1]  # of its 4 tokens and the 5 that it had sampled


def test_half_of_the_limit_is_for_a_more_urgent_one_that_waits():
    steps = beside_decodes(1, min_prefill_limit=10, prefill_tokens_per_request=0, policy="priority")
    steps.add("a", 40, priority=1)
    assert steps.step().num_scheduled_tokens == {"d0": 1, "a": 10}
    steps.add("u", 20, priority=-1)
    assert steps.step().num_scheduled_tokens == {"d0": 1, "a": 5, "u": 5}


def test_what_a_prompt_whose_logprobs_are_wanted_leaves_of_the_limit_is_for_others():
    steps = beside_decodes(1, min_prefill_limit=10, prefill_tokens_per_request=0, max_prompt_logprobs=4)
    steps.add("a", 12, prompt_logprobs=0)
    steps.add("plain", 30)
    assert steps.step().num_scheduled_tokens == {"d0": 1, "a": 4, "plain": 6}


# ---- preemption ------------------------------------------------------------------------------------------------------


def test_the_newest_gives_way():
    """Two blocks each of five; both need a third."""
    steps = Steps(num_blocks=5)
    first, second = steps.add("a", 8, 5), steps.add("b", 8, 5)
    steps.step()
    step = steps.step()
    assert step.preempted_req_ids == ["b"]
    assert step.num_scheduled_tokens == {"a": 1}
    assert step.scheduled_cached_reqs.req_ids == ["a"]
    assert (first.status, second.status) == (RequestStatus.RUNNING, RequestStatus.PREEMPTED)
    assert (second.num_computed_tokens, second.block_ids, second.num_preemptions) == (0, [], 1)


def test_a_preempted_request_is_ahead_of_all_that_came_after_it():
    steps = Steps(num_blocks=5, max_num_seqs=2, max_passes=0)
    steps.add("a", 8, 5)
    steps.add("b", 8, 5)
    steps.add("c", 8, 1)
    order = [request_id for step in steps.run() for request_id in started(step)]
    assert order == ["a", "b", "b", "c"]


def test_one_that_asks_for_a_block_may_be_the_victim_itself():
    steps = Steps(num_blocks=4)
    steps.add("a", 5, 8)
    steps.add("b", 8, 5)
    steps.step()
    step = steps.step()
    assert step.preempted_req_ids == ["b"]
    assert step.scheduled_cached_reqs.req_ids == []
    assert step.num_scheduled_tokens == {"a": 1}


def test_of_the_least_urgent_the_newest_gives_way():
    steps = Steps(num_blocks=7, policy="priority")
    for request_id, priority in zip("abc", (1, 1, 0), strict=True):
        steps.add(request_id, 8, 5, priority=priority)
    steps.step()
    assert steps.step().preempted_req_ids == ["b"]


def test_a_victim_that_had_just_been_given_a_block_is_not_told_of_it():
    steps = Steps(num_blocks=5, policy="priority")
    steps.add("a", 8, 5, priority=1)
    steps.add("b", 8, 5, priority=0)
    steps.step()
    step = steps.step()
    assert step.preempted_req_ids == ["a"]
    assert step.scheduled_cached_reqs.req_ids == ["b"]
    assert step.num_scheduled_tokens == {"b": 1}


def test_nobody_starts_in_a_step_that_preempts_for_blocks():
    steps = Steps(num_blocks=6, max_num_seqs=3)
    steps.add("a", 8, 9)
    steps.add("b", 8, 9)
    steps.step()
    steps.add("c", 8, 1)
    steps.add("d", 1, 1)
    for _ in range(8):
        step = steps.step()
        if step.preempted_req_ids:
            assert started(step) == []
            break
    else:
        pytest.fail("nothing was preempted")


def test_one_that_returns_needs_a_spare_block_and_a_new_one_does_not():
    steps = Steps(num_blocks=6, caching=False)
    holder = steps.add("holder", 12, 9)
    steps.step()
    assert len(holder.block_ids) == 3
    returning = steps.add("b", 12, 9)
    returning.status, returning.num_preemptions = RequestStatus.PREEMPTED, 1
    assert steps.scheduler._blocks_needed(returning) == (3, 1)
    assert not steps.scheduler._take_blocks(returning)
    returning.status, returning.blocked_at = RequestStatus.WAITING, None
    assert steps.scheduler._blocks_needed(returning) == (3, 0)
    assert steps.scheduler._take_blocks(returning)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "status", "num_preemptions", "needed"),
    [
        (8, 9, RequestStatus.WAITING, 0, (2, 0)),
        (8, 9, RequestStatus.PREEMPTED, 1, (2, 1)),
        (8, 9, RequestStatus.PREEMPTED, 2, (2, 1)),
        (8, 9, RequestStatus.PREEMPTED, 3, (4, 0)),  # positions 0 to 15
        (8, 10, RequestStatus.PREEMPTED, 3, (5, 0)),
        (8, 1, RequestStatus.PREEMPTED, 1, (2, 0)),  # will never need a block more
        (9, 1, RequestStatus.PREEMPTED, 1, (3, 0)),
        (9, 20, RequestStatus.WAITING, 0, (3, 0)),
        (9, 20, RequestStatus.PREEMPTED, 1, (3, 1)),
    ],
)
def test_blocks_needed(prompt, max_tokens, status, num_preemptions, needed):
    steps = Steps()
    request = steps.add("a", prompt, max_tokens)
    request.status, request.num_preemptions = status, num_preemptions
    assert steps.scheduler._blocks_needed(request) == needed


def test_a_protected_request_returns_with_all_its_blocks_and_asks_for_none():
    steps = Steps(num_blocks=16)
    request = steps.add("a", 5, 20)
    request.num_preemptions = 3
    new = steps.step().scheduled_new_reqs[0]
    assert len(new.block_ids[0]) == 6  # positions 0 to 23
    for step in steps.run():
        assert step.scheduled_cached_reqs.req_ids == []
    assert len(steps.outputs["a"]) == 20


def test_after_three_preemptions_others_give_way_instead():
    """The oldest would be kept by the rule of the newest; here the newest is protected."""
    steps = Steps(num_blocks=8)
    steps.add("a", 8, 12)
    newest = steps.add("b", 8, 9)
    newest.num_preemptions = 3
    preempted = [request_id for step in steps.run() for request_id in step.preempted_req_ids]
    assert set(preempted) <= {"a"}


def test_num_cached_tokens_counts_once_whatever_happens_later():
    steps = Steps(num_blocks=6)
    steps.add("stem", list(range(100, 109)), 1)
    steps.run()
    steps.add("a", 8, 9)
    steps.add("b", [*range(100, 108), 1], 8)
    preempted = [request_id for step in steps.run() for request_id in step.preempted_req_ids]
    assert preempted == ["b"]
    cached = [output.num_cached_tokens for output in steps.outputs["b"]]
    assert cached == [8] + [0] * 7
    stats = steps.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (9 + 8 + 9, 8)


def test_queries_are_counted_only_with_a_cache():
    steps = Steps(caching=False)
    steps.add("a", 8, 2)
    steps.run()
    assert steps.scheduler.stats().prefix_cache_queries == 0


# ---- a more urgent request displaces ---------------------------------------------------------------------------------


def test_a_more_urgent_request_takes_the_place_of_the_newest_least_urgent():
    steps = Steps(max_num_seqs=3, policy="priority")
    for request_id, priority in zip("abc", (1, 2, 2), strict=True):
        steps.add(request_id, 4, 30, priority=priority)
    steps.step()
    steps.add("u", 4, 2, priority=1)
    step = steps.step()
    assert (step.preempted_req_ids, started(step)) == (["c"], ["u"])
    assert "c" not in step.num_scheduled_tokens


@pytest.mark.parametrize(("priority", "displaces"), [(0, True), (1, False), (2, False)])
def test_only_a_strictly_more_urgent_one_displaces(priority, displaces):
    steps = Steps(max_num_seqs=1, policy="priority")
    steps.add("a", 4, 5, priority=1)
    steps.step()
    steps.add("u", 4, 2, priority=priority)
    assert steps.step().preempted_req_ids == (["a"] if displaces else [])


def test_nobody_displaces_in_first_come():
    steps = Steps(max_num_seqs=1)
    steps.add("a", 4, 5, priority=1)
    steps.step()
    steps.add("u", 4, 2, priority=0)
    assert steps.step().preempted_req_ids == []


def test_nobody_is_displaced_while_a_place_and_blocks_are_free():
    steps = Steps(max_num_seqs=2, policy="priority")
    steps.add("a", 4, 5, priority=1)
    steps.step()
    steps.add("u", 4, 2, priority=0)
    step = steps.step()
    assert (step.preempted_req_ids, started(step)) == ([], ["u"])


def test_displacement_for_blocks_takes_as_few_as_needed():
    steps = Steps(num_blocks=8, policy="priority", caching=False)
    for request_id in ("a", "b", "c"):
        steps.add(request_id, 7, 2, priority=1)
    steps.schedule()
    steps.add("u", 15, 2, priority=0)  # 4 blocks, of which 2 are free
    step = steps.schedule()
    assert (step.preempted_req_ids, started(step)) == (["c"], ["u"])


def test_nobody_is_displaced_in_vain():
    steps = Steps(num_blocks=8, policy="priority", caching=False)
    steps.add("a", 15, 2, priority=0)
    steps.add("b", 7, 2, priority=1)
    steps.schedule()
    steps.add("u", 20, 2, priority=0)  # 5 blocks; 2 are free and b has 2
    assert steps.schedule().preempted_req_ids == []


def test_nobody_is_displaced_where_prompts_under_way_have_the_whole_budget():
    steps = Steps(max_num_seqs=2, budget=8, policy="priority")
    steps.add("a", 4, 30, priority=1)
    steps.step()
    steps.add("long", 18, 2, priority=0)
    steps.step()
    steps.add("u", 4, 2, priority=0)
    assert steps.step().preempted_req_ids == []
    step = steps.step()
    assert (step.preempted_req_ids, step.num_scheduled_tokens) == (["a"], {"long": 4, "u": 4})


@pytest.mark.parametrize("num_decoding", [1, 2])
def test_the_tokens_of_those_displaced_are_there_for_the_urgent_one(num_decoding):
    """Of a prompt under way, and of a decode where decodes have the whole budget."""
    steps = Steps(max_num_seqs=num_decoding, budget=num_decoding, policy="priority", caching=False)
    for i in range(num_decoding):
        steps.add(f"d{i}", 1 if num_decoding == 2 else 9, 30, priority=1)
    for _ in range(3):
        steps.step()
    steps.add("u", 4, 2, priority=0)
    step = steps.step()
    assert (step.preempted_req_ids, started(step)) == ([f"d{num_decoding - 1}"], ["u"])


def test_for_one_that_returns_the_spare_block_is_made_free_too():
    steps = Steps(num_blocks=6, policy="priority", caching=False)
    steps.add("a", 12, 9, priority=1)
    steps.schedule()
    urgent = steps.add("u", 12, 9, priority=0)  # 3 blocks, and 3 are free
    urgent.status, urgent.num_preemptions = RequestStatus.PREEMPTED, 1
    step = steps.schedule()
    assert (step.preempted_req_ids, started(step)) == (["a"], ["u"])


def test_what_both_share_is_kept_and_not_counted():
    """The urgent request's beginning is the victim's: those blocks do not become free for the rest."""
    steps = Steps(num_blocks=6, policy="priority")
    steps.add("a", [*range(8), 90], 4, priority=1)
    steps.step()
    steps.add("u", [*range(8), *range(50, 60)], 2, priority=0)  # 5 blocks, 2 of them a's: 3 are free
    step = steps.step()
    assert (step.preempted_req_ids, started(step)) == ([], ["u"])
    assert steps.requests["u"].num_cached_tokens == 8


def test_a_protected_request_is_not_displaced():
    steps = Steps(max_num_seqs=1, policy="priority")
    steps.add("a", 4, 5, priority=1).num_preemptions = 3
    steps.step()
    steps.add("u", 4, 2, priority=0)
    assert steps.step().preempted_req_ids == []


def test_half_of_the_budget_is_for_a_more_urgent_one_that_waits():
    steps = Steps(budget=16, policy="priority")
    steps.add("a", 60, 2, priority=1)
    assert steps.step().num_scheduled_tokens == {"a": 16}
    steps.add("u", 20, 2, priority=0)
    assert steps.step().num_scheduled_tokens == {"a": 8, "u": 8}
    assert steps.step().num_scheduled_tokens == {"u": 12, "a": 4}


@pytest.mark.parametrize(("priority", "policy"), [(1, "priority"), (2, "priority"), (0, "fcfs")])
def test_the_whole_budget_where_none_more_urgent_waits(priority, policy):
    steps = Steps(budget=16, policy=policy)
    steps.add("a", 60, 2, priority=1)
    steps.step()
    steps.add("w", 20, 2, priority=priority)
    assert steps.step().num_scheduled_tokens == {"a": 16}


@pytest.mark.parametrize(("budget", "expected"), [(3, {"a": 1, "u": 2}), (2, {"a": 1, "u": 1}), (1, {"a": 1})])
def test_half_of_little_is_one_token_at_least(budget, expected):
    steps = Steps(budget=budget, policy="priority")
    steps.add("a", 20, 2, priority=1)
    steps.step()
    steps.add("u", 20, 2, priority=0)
    assert steps.step().num_scheduled_tokens == expected


# ---- those that do not fit now ---------------------------------------------------------------------------------------


def blocked_by_a_holder(**more: object) -> Steps:
    """`big` does not fit beside `holder`; there is room for small ones."""
    steps = Steps(num_blocks=20, caching=False, **more)
    steps.add("holder", 40, 41)
    steps.step()
    steps.add("big", 60, 2)
    return steps


def test_one_that_fits_passes_one_that_does_not():
    steps = blocked_by_a_holder()
    steps.add("small", 4, 2)
    assert started(steps.step()) == ["small"]
    assert steps.requests["big"].num_passed == 1


def test_one_is_passed_max_passes_times_and_then_all_wait_for_it():
    steps = blocked_by_a_holder(max_passes=3, max_num_seqs=8)
    for i in range(5):
        steps.add(f"s{i}", 4, 2)
    assert started(steps.step()) == ["s0", "s1", "s2"]
    assert steps.requests["big"].num_passed == 3
    order = [request_id for step in steps.run() for request_id in started(step)]
    assert order == ["big", "s3", "s4"]


def test_never_passed_with_max_passes_0():
    steps = blocked_by_a_holder(max_passes=0)
    steps.add("small", 4, 2)
    assert started(steps.step()) == []
    assert [request_id for step in steps.run() for request_id in started(step)] == ["big", "small"]


def test_an_overdue_request_is_not_passed():
    steps = blocked_by_a_holder(patience=5)
    steps.add("s0", 4, 2)
    assert started(steps.step()) == ["s0"]
    for _ in range(5):
        steps.step()
    steps.add("s1", 4, 2)
    assert started(steps.step()) == []
    assert [request_id for step in steps.run() for request_id in started(step)] == ["big", "s1"]


def test_an_overdue_request_goes_before_more_urgent_ones():
    steps = Steps(max_num_seqs=1, policy="priority", patience=5)
    steps.add("a", 4, 12, priority=0)
    steps.step()
    steps.add("lax", 4, 2, priority=9)
    for _ in range(6):
        steps.step()
    steps.add("urgent", 4, 2, priority=0)
    order = [request_id for step in steps.run() for request_id in started(step)]
    assert order == ["lax", "urgent", "lax"]  # it has its turn, but may be displaced like any other


def test_at_most_eight_are_looked_past_in_a_step():
    for num_big, expected in ((8, ["small"]), (9, [])):
        steps = blocked_by_a_holder(max_num_seqs=32)
        for i in range(num_big - 1):
            steps.add(f"big{i}", 60, 2)
        steps.add("small", 4, 2)
        assert started(steps.step()) == expected
        assert steps.scheduler.num_unfinished == num_big + 2


def test_with_few_places_one_looks_past_as_many():
    steps = blocked_by_a_holder(max_num_seqs=2)
    for i in range(7):
        steps.add(f"big{i}", 60, 2)
    steps.add("small", 4, 2)
    assert started(steps.step()) == ["small"]


def test_only_those_that_are_ahead_are_passed():
    steps = blocked_by_a_holder()
    steps.add("s0", 4, 2)
    steps.add("big2", 60, 2)
    steps.add("s1", 4, 2)
    assert started(steps.step()) == ["s0", "s1"]
    assert (steps.requests["big"].num_passed, steps.requests["big2"].num_passed) == (2, 1)


def test_blocks_are_looked_for_again_as_soon_as_some_came_free():
    steps = blocked_by_a_holder()
    steps.step()
    steps.scheduler.abort_requests(["holder"])
    assert started(steps.step()) == ["big"]


def test_they_are_not_looked_for_before(monkeypatch):
    """A prompt with many cached blocks waits at no cost."""
    steps = blocked_by_a_holder()
    steps.step()
    looked_for = []
    find = steps.scheduler.kv.find_computed_blocks
    monkeypatch.setattr(
        steps.scheduler.kv, "find_computed_blocks", lambda request: looked_for.append(request) or find(request)
    )
    steps.step()
    assert looked_for == []
    steps.scheduler.abort_requests(["holder"])
    steps.step()
    assert [request.request_id for request in looked_for] == ["big"]


# ---- what comes back -------------------------------------------------------------------------------------------------


def test_outputs_say_where_they_belong():
    steps = Steps()
    steps.add("a", 4, 3)
    steps.run()
    assert [(o.first_index, o.new_token_ids, o.finish_reason) for o in steps.outputs["a"]] == [
        (0, [PLAIN], None),
        (1, [PLAIN], None),
        (2, [PLAIN], FinishReason.LENGTH),
    ]


def test_outputs_by_client():
    steps = Steps()
    for request_id, client in zip("abc", (1, 0, 1), strict=True):
        steps.add(request_id, 4, client_index=client)
    step = steps.schedule()
    outputs = steps.scheduler.update(step, steps.sampled(step))
    assert {client: [o.request_id for o in some] for client, some in outputs.items()} == {1: ["a", "c"], 0: ["b"]}


@pytest.mark.parametrize(
    ("token_id", "reason", "stop_reason"),
    [(EOS, FinishReason.STOP, None), (9, FinishReason.STOP, 9), (PLAIN, None, None)],
)
def test_stops(token_id, reason, stop_reason):
    steps = Steps()
    steps.add("a", 4, 8, stop_token_ids=(9,))
    steps.step(a=token_id)
    (output,) = steps.outputs["a"]
    assert (output.new_token_ids, output.finish_reason, output.stop_reason) == ([token_id], reason, stop_reason)


def test_a_stop_id_that_is_end_of_sequence_too_has_no_stop_reason():
    steps = Steps()
    steps.add("a", 4, 8, stop_token_ids=(EOS,))
    steps.step(a=EOS)
    assert steps.outputs["a"][0].stop_reason is None


def test_length_has_no_stop_reason():
    steps = Steps()
    steps.add("a", 4, 1)
    steps.step()
    output = steps.outputs["a"][0]
    assert (output.finish_reason, output.stop_reason) == (FinishReason.LENGTH, None)


def test_nothing_stops_before_min_tokens():
    steps = Steps()
    steps.add("a", 4, 8, min_tokens=2, stop_token_ids=(9,))
    for token_id in (EOS, 9):
        steps.step(a=token_id)
    assert [o.finish_reason for o in steps.outputs["a"]] == [None, None]
    steps.step(a=9)
    assert steps.outputs["a"][-1].finish_reason is FinishReason.STOP


def test_a_result_that_names_no_token_for_a_request_is_a_fault():
    steps = Steps()
    steps.add("a", 4, 8)
    step = steps.schedule()
    with pytest.raises(ValueError, match="zip"):
        steps.scheduler.update(step, ModelRunnerOutput(["a"], []))


def test_logprobs_go_to_the_requests_that_they_are_of():
    steps = Steps()
    for name, client_index in (("a", 0), ("b", 0), ("c", 1)):
        steps.add(name, 4, 8, client_index=client_index)
    step = steps.schedule()
    result = steps.sampled(step)
    result.logprobs = {"b": TokenLogprobs(-0.5, 1), "c": TokenLogprobs(-1.5, 2), "gone": TokenLogprobs(-2.5, 3)}
    outputs = steps.scheduler.update(step, result)
    assert {output.request_id: output.new_logprobs for of_client in outputs.values() for output in of_client} == {
        "a": None,
        "b": [TokenLogprobs(-0.5, 1)],
        "c": [TokenLogprobs(-1.5, 2)],
    }


def test_tokens_of_ended_and_waiting_requests_are_dropped():
    steps = Steps()
    steps.add("a", 4, 8)
    step = steps.schedule()
    result = steps.sampled(step)
    steps.scheduler.abort_requests(["a"])
    assert steps.scheduler.update(step, result) == {}
    again = steps.add("a", 4, 8)
    assert steps.scheduler.update(step, result) == {}
    assert again.num_output_tokens == 0


def test_a_request_that_ends_with_its_first_token_leaves_nothing():
    steps = Steps()
    steps.add("a", 4, 1)
    steps.step()
    assert steps.scheduler.num_unfinished == 0
    assert steps.scheduler.kv.pool.num_free == 64
    assert steps.scheduler.has_work  # the worker has yet to hear of it
    assert steps.step().finished_req_ids == ["a"]
    assert not steps.scheduler.has_work
    assert steps.schedule().finished_req_ids == []


# ---- coming and going ------------------------------------------------------------------------------------------------


def test_abort():
    steps = Steps(max_num_seqs=1)
    steps.add("a", 4, 8, client_index=1)
    steps.add("b", 4, 8)
    for _ in range(2):
        steps.step()
    outputs = steps.scheduler.abort_requests(["a", "never", "b", "a"])
    assert [(o.request_id, o.first_index, o.new_token_ids, o.finish_reason) for o in outputs[1]] == [
        ("a", 2, [], FinishReason.ABORT)
    ]
    assert [(o.request_id, o.first_index) for o in outputs[0]] == [("b", 0)]
    steps.scheduler.check()
    assert steps.scheduler.num_unfinished == 0
    assert steps.step().finished_req_ids == ["a"]  # the worker never saw b


def test_a_preempted_request_that_is_aborted_is_dropped_once():
    steps = Steps(num_blocks=5, max_num_seqs=2)
    steps.add("a", 8, 5)
    steps.add("b", 8, 5)
    steps.step()
    assert steps.step().preempted_req_ids == ["b"]
    steps.scheduler.abort_requests(["b"])
    steps.scheduler.check()
    assert all(step.finished_req_ids in ([], ["a"]) for step in steps.run())


def test_a_known_id_is_counted_and_dropped():
    steps = Steps()
    first = steps.add("a", 4, 8)
    second = steps.add("a", 4, 8)
    assert (steps.scheduler.num_duplicates, steps.scheduler.num_unfinished) == (1, 1)
    assert (len(first.events), len(second.events)) == (1, 0)


def test_what_can_never_fit_is_refused_and_leaves_nothing():
    steps = Steps(num_blocks=4)
    steps.add("fits", 8, 9)  # 16 positions: the last token is never computed
    with pytest.raises(KVCapacityError) as refusal:
        steps.add("big", 8, 10)
    assert refusal.value.param == "max_tokens"
    assert "17 positions" in refusal.value.message
    assert "has 16" in refusal.value.message
    with pytest.raises(InvalidParameterError):
        steps.add("done", 4, 2, output=[1, 2])
    steps.add("nearly", 4, 2, output=[1])
    assert steps.scheduler.num_unfinished == 2
    steps.scheduler.check()


def test_events_with_their_times():
    steps = Steps(num_blocks=5, max_num_seqs=2)
    steps.add("a", 8, 5)
    steps.add("b", 8, 3)
    steps.clock.now = 101.0
    steps.step()
    steps.clock.now = 102.0
    assert steps.step().preempted_req_ids == ["b"]
    steps.clock.now = 103.0
    steps.run()
    assert steps.events("a") == [(QUEUED, 100.0), (SCHEDULED, 101.0)]
    assert steps.events("b") == [(QUEUED, 100.0), (SCHEDULED, 101.0), (PREEMPTED, 102.0), (SCHEDULED, 103.0)]
    assert [o.events is not None for o in steps.outputs["b"]] == [True, True, False]


def test_stats():
    steps = Steps(num_blocks=20, max_num_seqs=2, budget=8)
    assert steps.scheduler.stats().longest_wait == 0.0
    steps.add("a", 4, 9)
    steps.step()
    steps.add("b", 40, 2)
    steps.step()
    steps.clock.now = 110.0
    steps.add("c", 4, 2)
    steps.clock.now = 112.0
    steps.add("d", 4, 2)
    steps.clock.now = 115.0
    stats = steps.scheduler.stats()
    assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.step_counter) == (2, 2, 2)
    assert stats.longest_wait == 5.0
    assert stats.kv_cache_usage == pytest.approx(12 / 20)
    assert stats.num_preemptions == 0
    steps.clock.now = 90.0  # the clock was set back
    assert steps.scheduler.stats().longest_wait == 0.0


def test_preemptions_are_counted():
    steps = Steps(num_blocks=5, max_num_seqs=2)
    steps.add("a", 8, 5)
    steps.add("b", 8, 5)
    num_preempted = sum(len(step.preempted_req_ids) for step in steps.run())
    assert steps.scheduler.stats().num_preemptions == num_preempted == 1


def test_reset_prefix_cache():
    steps = Steps()
    steps.add("a", list(range(9)), 2)
    steps.step()
    assert steps.scheduler.reset_prefix_cache() is False
    steps.run()
    assert steps.scheduler.reset_prefix_cache() is True
    steps.add("b", list(range(9)), 1)
    steps.run()
    assert steps.outputs["b"][0].num_cached_tokens == 0


# ---- check -----------------------------------------------------------------------------------------------------------


def forget_a_request(steps: Steps) -> None:
    del steps.scheduler._requests["running"]


def lose_a_waiting_one(steps: Steps) -> None:
    steps.scheduler._waiting.remove(steps.requests["waiting"])


def run_and_wait(steps: Steps) -> None:
    steps.scheduler._waiting.add(steps.requests["running"], 1)


def lose_a_wheel_entry(steps: Steps) -> None:
    for slot in steps.scheduler._wheel:
        slot.clear()


def keep_a_wheel_entry(steps: Steps) -> None:
    steps.scheduler._wheel[0]["gone"] = steps.requests["running"]


def protect_in_the_wheel(steps: Steps) -> None:
    steps.requests["running"].num_preemptions = 3


def know_too_many_tokens(steps: Steps) -> None:
    steps.requests["running"].all_token_ids.extend(range(5))


def lose_a_block(steps: Steps) -> None:
    steps.requests["running"].block_ids.pop()


def forget_the_last_step(steps: Steps) -> None:
    steps.scheduler._last_steps.clear()


def lose_a_reference(steps: Steps) -> None:
    steps.scheduler.kv.pool._ref_counts[0] -= 1


@pytest.mark.parametrize(
    ("corrupt", "words"),
    [
        (forget_a_request, "not those that run or wait"),
        (lose_a_waiting_one, "not those that run or wait"),
        (run_and_wait, "runs and waits"),
        (lose_a_wheel_entry, "growth wheel"),
        (keep_a_wheel_entry, "growth wheel"),
        (protect_in_the_wheel, "growth wheel"),
        (know_too_many_tokens, "request running has not the blocks"),
        (lose_a_block, "request running has not the blocks"),
        (forget_the_last_step, "last step"),
        (lose_a_reference, "block 0 has 0 references"),
    ],
)
def test_check_finds(corrupt, words):
    steps = Steps(max_num_seqs=1)
    steps.add("running", 4, 8)
    steps.add("waiting", 4, 8)
    steps.step()
    corrupt(steps)
    with pytest.raises(InvariantError, match=words):
        steps.scheduler.check()


# ---- logprobs of prompts


def test_a_step_has_as_many_logprobs_of_prompts_as_it_may_and_others_use_the_rest_of_the_budget():
    steps = Steps(budget=64, max_prompt_logprobs=10)
    for request_id in ("a", "b"):
        steps.add(request_id, 16, prompt_logprobs=0)
    steps.add("plain", 20)
    counts = [steps.step().num_scheduled_tokens for _ in range(4)]
    assert counts == [{"a": 10, "plain": 20}, {"plain": 1, "a": 6, "b": 4}, {"plain": 1, "a": 1, "b": 10}, {
        "plain": 1, "a": 1, "b": 2,
    }]  # fmt: skip


def test_a_prompt_whose_logprobs_are_wanted_reads_no_cached_blocks_and_leaves_some():
    steps = Steps()
    prompt = list(range(100, 117))
    steps.add("first", prompt, max_tokens=1)
    steps.step()
    steps.add("asks", prompt, max_tokens=1, prompt_logprobs=0)
    assert steps.step().num_scheduled_tokens == {"asks": 17}
    steps.add("plain", prompt, max_tokens=1)
    assert steps.step().num_scheduled_tokens == {"plain": 1}
    assert steps.scheduler.stats().prefix_cache_queries == 2 * 17  # what was not looked up is no miss


def test_a_request_starts_only_where_a_logprob_of_a_prompt_is_left_for_it():
    """Until then it holds nothing. Those that want none go past it, and that is not counted."""
    steps = Steps(max_num_seqs=16, max_prompt_logprobs=4, max_passes=0)
    steps.add("a", 9, 1, prompt_logprobs=0)
    waiting = [steps.add(f"w{i}", 4, 1, prompt_logprobs=0) for i in range(10)]
    steps.add("plain", 4, 1)
    step = steps.step()
    assert step.num_scheduled_tokens == {"a": 4, "plain": 4}
    assert {(request.status, len(request.block_ids), request.num_passed) for request in waiting} == {
        (RequestStatus.WAITING, 0, 0)
    }
    assert steps.step().num_scheduled_tokens == {"a": 4}
    assert steps.step().num_scheduled_tokens == {"a": 1, "w0": 3}


def test_one_that_is_overdue_is_not_passed_for_want_of_logprobs_of_prompts():
    steps = Steps(max_prompt_logprobs=1, patience=4)
    steps.add("a", 6, 1, prompt_logprobs=0)
    steps.add("w", 4, 1, prompt_logprobs=0)
    for name in ("p0", "p1", "p2"):
        steps.add(name, 4, 1)
        assert started(steps.step())[-1] == name
    steps.add("p3", 4, 1)
    assert [started(steps.step()) for _ in range(4)] == [[], [], [], ["w", "p3"]]


def test_each_prompt_leaves_a_logprob_to_those_behind_it():
    steps = Steps(policy="priority", max_prompt_logprobs=8)
    counts = []
    for request_id, priority in (("lax", 3), ("normal", 2), ("urgent", 1)):
        steps.add(request_id, 40, 1, priority=priority, prompt_logprobs=0)
        counts.append(steps.step().num_scheduled_tokens)
    assert counts == [{"lax": 8}, {"lax": 4, "normal": 4}, {"normal": 3, "lax": 2, "urgent": 3}]
    assert steps.step().num_scheduled_tokens == {"urgent": 6, "normal": 1, "lax": 1}


def urgent_stream(steps: Steps, num_steps: int) -> None:
    """Steps beside two more urgent requests that want logprobs of their prompts, and a new one for each that ends."""
    urgent: list[Request] = []
    for number in range(num_steps):
        urgent = [request for request in urgent if not request.status.is_finished]
        while len(urgent) < 2:
            urgent.append(steps.add(f"{len(urgent)}{number}", 9, 1, priority=0, prompt_logprobs=0))
        steps.step()


def test_a_prompt_whose_logprobs_are_wanted_goes_on_beside_a_stream_of_urgent_ones():
    """One token at least in each of these steps, as the budget is never used up."""
    steps = Steps(policy="priority", max_prompt_logprobs=4)
    steps.add("lax", 40, 1, priority=1, prompt_logprobs=0)
    steps.step()
    urgent_stream(steps, 36)
    assert steps.outputs["lax"][0].finish_reason is FinishReason.LENGTH


def test_of_what_is_there_half_is_for_a_more_urgent_one_that_waits():
    steps = Steps(policy="priority", max_prompt_logprobs=8)
    steps.add("a", 40, 1, priority=1, prompt_logprobs=0)
    assert steps.step().num_scheduled_tokens == {"a": 8}
    steps.add("u", 12, 1, priority=0, prompt_logprobs=0)
    assert steps.step().num_scheduled_tokens == {"a": 4, "u": 4}
    assert steps.step().num_scheduled_tokens == {"u": 7, "a": 1}


def test_nothing_is_kept_for_a_more_urgent_one_that_finds_no_logprobs_of_prompts():
    steps = Steps(budget=16, policy="priority", max_prompt_logprobs=4)
    steps.add("a", 40, 1, priority=0, prompt_logprobs=0)
    steps.add("b", 40, 1, priority=1)
    steps.step()
    steps.add("u", 12, 1, priority=0, prompt_logprobs=0)
    assert steps.step().num_scheduled_tokens == {"a": 4, "b": 12}


def test_nobody_is_displaced_for_one_that_finds_no_logprobs_of_prompts():
    steps = Steps(max_num_seqs=2, policy="priority", max_prompt_logprobs=4)
    steps.add("a", 4, 30, priority=1)
    steps.add("long", 10, 2, priority=0, prompt_logprobs=0)
    steps.step()
    steps.add("u", 4, 2, priority=0, prompt_logprobs=0)
    assert steps.step().preempted_req_ids == []
    step = steps.step()
    assert (step.preempted_req_ids, step.num_scheduled_tokens) == (["a"], {"long": 2, "u": 2})


def test_the_logprobs_of_one_that_is_displaced_are_there_for_the_urgent_one():
    steps = Steps(max_num_seqs=1, policy="priority", max_prompt_logprobs=1)
    steps.add("a", 9, 2, priority=1, prompt_logprobs=0)
    steps.step()
    steps.add("u", 4, 2, priority=0, prompt_logprobs=0)
    step = steps.step()
    assert (step.preempted_req_ids, step.num_scheduled_tokens) == (["a"], {"u": 1})
