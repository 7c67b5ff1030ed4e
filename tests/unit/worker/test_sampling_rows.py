"""From `SamplingParams` to the arrays of a step, over rows that come, sample, are preempted and return."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from headrace.contracts.sampling_params import SamplingParams
from headrace.contracts.scheduler import NewRequestData
from headrace.model.ops import SamplingInputs, TokenLists
from headrace.worker.input_batch import InputBatch
from headrace.worker.inputs import gather_sampling

PROMPT = [5, 6, 5]


@pytest.fixture
def batch() -> InputBatch:
    return InputBatch(max_num_seqs=4, max_model_len=32, block_size=4, eos_token_ids=(2, 3))


def add(batch: InputBatch, req_id: str, output: list[int] | None = None, **params: object) -> None:
    batch.add(NewRequestData(req_id, PROMPT, output or [], SamplingParams(**params), [[0, 1]], 0))


def gather(batch: InputBatch, *req_ids: str) -> SamplingInputs:
    return gather_sampling(batch, np.array([batch.rows[req_id] for req_id in req_ids]))


def append(batch: InputBatch, **tokens: int) -> None:
    rows = np.array([batch.rows[req_id] for req_id in tokens])
    batch.append_tokens(rows, np.array(list(tokens.values()), np.int32))


def lists(tokens: TokenLists | None) -> list[list[int]]:
    assert tokens is not None
    assert tokens.starts.dtype == tokens.ids.dtype == np.int32
    return [tokens.of(row).tolist() for row in range(len(tokens.starts) - 1)]


def seen(inputs: SamplingInputs) -> list[dict[int, int]]:
    """Of each row: token -> how often in the output."""
    penalties = inputs.penalties
    assert penalties is not None
    starts = penalties.seen.starts
    return [
        dict(zip(ids, penalties.output_counts[starts[row] : starts[row + 1]].tolist(), strict=True))
        for row, ids in enumerate(lists(penalties.seen))
    ]


def same(a: SamplingInputs, b: SamplingInputs) -> bool:
    def bits(value: object) -> object:
        if isinstance(value, np.ndarray):
            return value.dtype, value.tobytes()
        if isinstance(value, msgspec.Struct):
            return [bits(getattr(value, name)) for name in value.__struct_fields__]
        return value

    return bits(a) == bits(b)


def test_plain_rows_have_nothing_beside_their_columns(batch: InputBatch) -> None:
    add(batch, "a", temperature=0.0)
    add(batch, "b", top_k=5, logit_bias={})
    inputs = gather(batch, "a", "b")
    assert [inputs.allowed, inputs.banned, inputs.bias, inputs.penalties, inputs.logprobs] == [None] * 5


def test_each_row_has_its_own(batch: InputBatch) -> None:
    add(batch, "plain")
    add(batch, "bias", logit_bias={9: 1.5, 4: -100.0}, logprobs=0)
    add(batch, "allowed", allowed_token_ids=(8, 7, 8), logprobs=3)
    add(batch, "held", min_tokens=1, stop_token_ids=(9, 2))
    inputs = gather(batch, "held", "allowed", "plain", "bias")
    assert lists(inputs.banned) == [[2, 3, 9], [], [], []]
    assert lists(inputs.allowed) == [[], [7, 8], [], []]
    assert inputs.bias is not None
    assert lists(inputs.bias.tokens) == [[], [], [], [9, 4]]
    assert inputs.bias.values.tolist() == [1.5, -100.0]
    assert inputs.logprobs is not None
    assert inputs.logprobs.rows.tolist() == [1, 3]
    assert inputs.logprobs.num_top.tolist() == [3, 0]


def test_stop_ids_are_banned_until_min_tokens(batch: InputBatch) -> None:
    add(batch, "a", min_tokens=2, stop_token_ids=(9,), ignore_eos=True)
    for _ in range(2):
        assert lists(gather(batch, "a").banned) == [[9]]
        append(batch, a=5)
    assert gather(batch, "a").banned is None


def test_penalties_see_the_prompt_only_for_repetition(batch: InputBatch) -> None:
    add(batch, "repetition", repetition_penalty=1.5)
    add(batch, "presence", presence_penalty=0.5)
    add(batch, "frequency", frequency_penalty=-0.5)
    add(batch, "plain")
    for tokens in ({"repetition": 6, "presence": 6, "plain": 1}, {"frequency": 9, "repetition": 8, "presence": 6}):
        append(batch, **tokens)
    inputs = gather(batch, "plain", "repetition", "presence", "frequency")
    assert seen(inputs) == [{}, {5: 0, 6: 1, 8: 1}, {6: 2}, {9: 1}]
    assert inputs.penalties is not None
    assert inputs.penalties.repetition.tolist() == [1, 1.5, 1, 1]
    assert inputs.penalties.presence.tolist() == [0, 0, 0.5, 0]
    assert inputs.penalties.frequency.tolist() == [0, 0, 0, -0.5]


@pytest.mark.parametrize("num_before", [0, 1, 3])
def test_a_request_that_returns_after_a_preemption_wants_the_same(batch: InputBatch, num_before: int) -> None:
    wants = {"repetition_penalty": 1.5, "presence_penalty": 0.5, "logit_bias": {4: 1.0}, "logprobs": 2, "seed": 7}
    output = [8, 6, 8, 5]
    add(batch, "stays", **wants)
    add(batch, "returns", **wants)
    for token in output[:num_before]:
        append(batch, stays=token, returns=token)
    batch.remove("returns")
    add(batch, "between", presence_penalty=1.0, logprobs=5)
    add(batch, "returns", output=output[:num_before], **wants)
    for token in output[num_before:]:
        append(batch, stays=token, returns=token)
        assert same(gather(batch, "returns"), gather(batch, "stays"))


def test_a_row_is_reused_without_a_trace(batch: InputBatch) -> None:
    everything = {"allowed_token_ids": (7,), "logit_bias": {4: 1.0}, "presence_penalty": 1.0, "logprobs": 2}
    for name in "abcd":
        add(batch, name, **everything, min_tokens=3, stop_token_ids=(9,))
    for name in "abcd":
        batch.remove(name)
    add(batch, "plain")
    inputs = gather(batch, "plain")
    assert [inputs.allowed, inputs.banned, inputs.bias, inputs.penalties, inputs.logprobs] == [None] * 5
    append(batch, plain=5)


def test_arrays_are_contiguous(batch: InputBatch) -> None:
    """Kernels get their addresses."""

    def arrays(value: object) -> list[np.ndarray]:
        if isinstance(value, np.ndarray):
            return [value]
        assert isinstance(value, msgspec.Struct)
        return [array for name in value.__struct_fields__ for array in arrays(getattr(value, name))]

    wants = {"allowed_token_ids": (7,), "logit_bias": {4: 1.0}, "presence_penalty": 1.0, "logprobs": 2}
    for name in "abc":
        add(batch, name, **wants, min_tokens=3, stop_token_ids=(9,))
    assert all(array.flags.c_contiguous for array in arrays(gather(batch, "c", "a", "b")))


def test_no_rows_sample(batch: InputBatch) -> None:
    add(batch, "a", allowed_token_ids=(7,), logit_bias={4: 1.0}, presence_penalty=1.0, logprobs=2)
    inputs = gather_sampling(batch, np.zeros(0, np.intp))
    assert lists(inputs.allowed) == []
    assert seen(inputs) == []
    assert inputs.logprobs is None


def test_bad_words_are_banned_where_they_would_be_complete(batch):
    words = ((7,), (8, 9), (8, 8, 4))
    add(batch, "bad", bad_token_ids=words)
    add(batch, "plain")
    add(batch, "early", bad_token_ids=((2,), (6, 1)), min_tokens=2)
    assert lists(gather(batch, "bad", "plain", "early").banned) == [[7], [], [2, 3]]
    append(batch, bad=8, plain=8, early=6)
    assert lists(gather(batch, "bad", "plain", "early").banned) == [[7, 9], [], [1, 2, 3]]
    append(batch, bad=8, plain=8, early=5)
    assert lists(gather(batch, "bad", "plain", "early").banned) == [[4, 7, 9], [], [2]]
    before = gather(batch, "bad")
    batch.remove("bad")
    add(batch, "bad", output=[8, 8], bad_token_ids=words)  # back after a preemption
    assert same(gather(batch, "bad"), before)
    batch.remove("bad")
    batch.remove("early")
    assert gather(batch, "plain").banned is None


def test_where_every_allowed_token_is_banned_none_is(batch):
    add(batch, "words", allowed_token_ids=(7, 8), bad_token_ids=((7,), (8, 8)))
    add(batch, "early", allowed_token_ids=(2, 3), min_tokens=2)
    assert lists(gather(batch, "words", "early").banned) == [[7], []]
    append(batch, words=8, early=2)
    assert lists(gather(batch, "words", "early").banned) == [[], []]
