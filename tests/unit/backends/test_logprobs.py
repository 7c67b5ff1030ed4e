from __future__ import annotations

import numpy as np
import torch

from headrace.backends.numpy.sampler import NumpySampler
from tests.sampling_inputs import sampling_inputs


def test_logprobs_are_the_log_softmax_of_the_raw_logits() -> None:
    logits = np.random.default_rng(0).standard_normal((4, 300)).astype(np.float32) * 4
    rows = [
        {"temperature": 0.3, "top_k": 2, "logprobs": 5, "logit_bias": {7: 50.0}},
        {"temperature": 0.0},
        {"temperature": 0.0, "logprobs": 0},
        {"temperature": 1.0, "logprobs": 300, "presence_penalty": 2.0, "output": [1, 2]},
    ]
    output = NumpySampler().sample(logits, sampling_inputs(rows))
    found = output.logprobs
    assert found is not None
    expected = torch.log_softmax(torch.from_numpy(logits).double(), dim=-1)
    for place, row in enumerate((0, 2, 3)):
        token = int(output.token_ids[row])
        num_top = rows[row]["logprobs"]
        values, ids = expected[row].topk(num_top)
        top = slice(found.top_starts[place], found.top_starts[place + 1])
        assert found.top_ids[top].tolist() == ids.tolist()
        torch.testing.assert_close(torch.from_numpy(found.top[top]).double(), values, rtol=0, atol=1e-6)
        assert abs(float(expected[row, token]) - found.sampled[place]) < 1e-6
        assert found.ranks[place] == int((expected[row] >= expected[row, token]).sum())  # vLLM's definition
    assert output.token_ids[0] == 7  # the bias decides what is chosen, and changes no logprob
    assert found.ranks[0] > 1


def test_equals_have_the_same_rank_and_come_by_id() -> None:
    logits = np.array([[1, 3, 3, 0, 3]], np.float32)
    output = NumpySampler().sample(logits, sampling_inputs([{"temperature": 0.0, "logprobs": 2}]))
    assert output.token_ids.tolist() == [1]
    assert output.logprobs is not None
    assert output.logprobs.ranks.tolist() == [3]
    assert output.logprobs.top_ids.tolist() == [1, 2]


def test_no_more_than_the_vocabulary() -> None:
    output = NumpySampler().sample(np.array([[0, 1]], np.float32), sampling_inputs([{"logprobs": 20}]))
    assert output.logprobs is not None
    assert output.logprobs.top_starts.tolist() == [0, 2]
    assert output.logprobs.top_ids.tolist() == [1, 0]


def test_nobody_wants_any() -> None:
    assert NumpySampler().sample(np.zeros((1, 3), np.float32), sampling_inputs([{}])).logprobs is None
