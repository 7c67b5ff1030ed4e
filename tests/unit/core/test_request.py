"""The record of a request: which states follow which, and what its parameters come to."""

import itertools

import pytest

from headrace.core.kv_cache.hashing import root_hash
from headrace.core.request import FINISH_REASONS, RequestStatus
from headrace.core.sched.update import judge_token
from tests.unit.core.schedulers import EOS, PLAIN, make_request

LEGAL = {
    ("WAITING", "RUNNING"),
    ("WAITING", "FINISHED_ABORTED"),
    ("RUNNING", "PREEMPTED"),
    ("RUNNING", "FINISHED_STOPPED"),
    ("RUNNING", "FINISHED_LENGTH_CAPPED"),
    ("RUNNING", "FINISHED_ABORTED"),
    ("PREEMPTED", "RUNNING"),
    ("PREEMPTED", "FINISHED_ABORTED"),
}


@pytest.mark.parametrize(("old", "new"), list(itertools.product(RequestStatus, RequestStatus)))
def test_moves(old, new):
    request = make_request()
    request.status = old
    if (old.name, new.name) in LEGAL:
        request.move_to(new)
        assert request.status is new
    else:
        with pytest.raises(RuntimeError, match=f"from {old.name} to {new.name}"):
            request.move_to(new)
        assert request.status is old


def test_every_end_has_a_reason_and_nothing_else_has():
    assert {status for status in RequestStatus if status.is_finished} == FINISH_REASONS.keys()


def test_lengths():
    request = make_request(prompt=5, max_tokens=3, min_tokens=2, output=[9])
    assert (request.num_tokens, request.num_prompt_tokens, request.num_output_tokens) == (6, 5, 1)
    assert (request.max_total_tokens, request.max_positions, request.min_total_tokens) == (8, 7, 7)
    assert make_request(prompt=5, max_tokens=None, max_model_len=16).max_total_tokens == 16
    assert make_request(prompt=5, max_tokens=100, max_model_len=16).max_total_tokens == 16


def test_hashes_are_made_of_all_known_tokens_and_the_salt():
    request = make_request(prompt=6, output=[9, 9, 9])
    assert len(request.block_hashes) == 2
    salted = make_request(prompt=6, output=[9, 9, 9], cache_salt="x")
    assert salted.root_hash == root_hash("x")
    assert salted.block_hashes != request.block_hashes
    assert make_request(prompt=6, block_size=None).block_hashes == []


@pytest.mark.parametrize(
    ("token_id", "output", "params", "status"),
    [
        (PLAIN, [], {}, None),
        (EOS, [], {}, RequestStatus.FINISHED_STOPPED),
        (EOS, [], {"ignore_eos": True}, None),
        (9, [], {"stop_token_ids": (8, 9)}, RequestStatus.FINISHED_STOPPED),
        (9, [], {"stop_token_ids": (9,), "ignore_eos": True}, RequestStatus.FINISHED_STOPPED),
        (PLAIN, [1, 1], {}, RequestStatus.FINISHED_LENGTH_CAPPED),
        (PLAIN, [1], {}, None),
        (EOS, [1, 1], {}, RequestStatus.FINISHED_STOPPED),  # both are true
        (EOS, [], {"min_tokens": 1}, None),  # the first token
        (EOS, [1], {"min_tokens": 1}, RequestStatus.FINISHED_STOPPED),
        (9, [1], {"min_tokens": 2, "stop_token_ids": (9,)}, None),
        (EOS, [1, 1], {"min_tokens": 3}, RequestStatus.FINISHED_LENGTH_CAPPED),
    ],
)
def test_what_a_token_means(token_id, output, params, status):
    request = make_request(max_tokens=3, output=[*output, token_id], **params)
    assert judge_token(request, token_id) is status
