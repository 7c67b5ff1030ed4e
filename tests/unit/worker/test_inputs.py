from __future__ import annotations

import numpy as np
import pytest

from headrace.contracts.sampling_params import SamplingParams
from headrace.contracts.scheduler import NewRequestData
from headrace.errors import EngineError
from headrace.model.sampling.random import uniform
from headrace.worker.input_batch import InputBatch
from headrace.worker.inputs import gather_sampling, gather_step


def request(
    req_id: str,
    prompt: list[int],
    blocks: list[int],
    *,
    output: list[int] | None = None,
    computed: int = 0,
    **params: object,
) -> NewRequestData:
    return NewRequestData(req_id, prompt, output or [], SamplingParams(**params), [blocks], computed)


@pytest.fixture
def batch() -> InputBatch:
    return InputBatch(max_num_seqs=4, max_model_len=32, block_size=4)


def test_a_mixed_step(batch: InputBatch) -> None:
    batch.add(request("long", list(range(100, 110)), [7, 3, 5]))
    batch.add(request("cached", [1, 2, 3, 4, 5, 6], [2, 9], computed=4))
    batch.add(request("resumed", [1, 2], [4], output=[30, 31], computed=3))
    rows, step = gather_step(batch, {"resumed": 1, "long": 6, "cached": 2})
    assert step.token_ids.tolist() == [31, 100, 101, 102, 103, 104, 105, 5, 6]
    assert step.positions.tolist() == [3, 0, 1, 2, 3, 4, 5, 4, 5]
    assert step.slots.tolist() == [19, 28, 29, 30, 31, 12, 13, 36, 37]
    assert step.query_starts.tolist() == [0, 1, 7, 9]
    assert step.context_lens.tolist() == [4, 6, 6]
    assert step.block_tables.tolist() == [[4, 0], [7, 3], [2, 9]]
    # in the middle of a prompt nothing is sampled
    assert [rows.req_ids[place] for place in rows.samples] == ["resumed", "cached"]
    assert step.sample_rows.tolist() == [0, 8]


def test_sampled_tokens_are_the_next_inputs(batch: InputBatch) -> None:
    batch.add(request("a", [1, 2, 3], [0]))
    rows, step = gather_step(batch, {"a": 3})
    batch.num_computed_tokens[rows.rows] = step.context_lens
    batch.append_tokens(rows.rows[rows.samples], np.array([77], np.int32))
    batch.block_table.append(batch.rows["a"], [6])
    _, step = gather_step(batch, {"a": 1})
    assert (step.token_ids.tolist(), step.positions.tolist(), step.slots.tolist()) == ([77], [3], [3])


def test_the_random_number_belongs_to_the_place_in_the_output(batch: InputBatch) -> None:
    batch.add(request("fresh", [1, 2], [0], seed=-5))
    batch.add(request("resumed", [1, 2], [1], output=[8, 9], seed=-5, temperature=0.5, top_k=-1, top_p=0.9, min_p=0.1))
    rows = np.array([batch.rows["fresh"], batch.rows["resumed"]])
    inputs = gather_sampling(batch, rows)
    assert inputs.uniform.tolist() == uniform(np.array([-5, -5]), np.array([0, 2])).tolist()
    assert inputs.temperature.tolist() == [1.0, 0.5]
    assert inputs.top_k.tolist() == [0, 0]
    assert (inputs.top_p[1], inputs.min_p[1]) == (0.9, 0.1)


def test_rows_are_reused_without_a_trace(batch: InputBatch) -> None:
    for name in "abcd":
        batch.add(request(name, [1] * 20, [1, 2, 3, 4, 5]))
    with pytest.raises(EngineError):
        batch.add(request("e", [1], [0]))
    batch.remove("b")
    batch.remove("b")  # an abort may name a request that has no row any more
    batch.add(request("e", [50, 51], [9]))
    _, step = gather_step(batch, {"e": 2})
    assert (step.token_ids.tolist(), step.slots.tolist()) == ([50, 51], [36, 37])
    _, step = gather_step(batch, {"a": 20, "c": 20})
    assert step.token_ids.tolist() == [1] * 40


def test_a_request_has_one_row(batch: InputBatch) -> None:
    batch.add(request("a", [1], [0]))
    with pytest.raises(EngineError):
        batch.add(request("a", [1], [0]))


def test_the_token_behind_the_last_position_has_no_place(batch: InputBatch) -> None:
    batch.add(request("a", list(range(32)), list(range(8))))
    batch.append_tokens(np.array([batch.rows["a"]]), np.array([5], np.int32))
    assert batch.token_ids[batch.rows["a"]].tolist() == list(range(32))
