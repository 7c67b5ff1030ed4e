"""What requests change in their logits, against the logits processors of transformers and hand-computed values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as oracle

from headrace.backends.numpy.logits import edit_logits
from tests.sampling_inputs import sampling_inputs

INF = float("inf")


def edited(logits: list[float], **wants: object) -> list[float]:
    row = np.array([logits], np.float32)
    return edit_logits(row, sampling_inputs([wants])).tolist()[0]


def test_repetition_penalty_divides_positive_logits_and_multiplies_the_others() -> None:
    logits = np.random.default_rng(0).standard_normal(50).astype(np.float32) * 5
    prompt, output = [3, 4, 4, 7], [7, 9, 9, 9]
    actual = edited(logits.tolist(), repetition_penalty=1.3, prompt=prompt, output=output)
    processor = oracle.RepetitionPenaltyLogitsProcessor(penalty=1.3)
    expected = processor(torch.tensor([prompt + output]), torch.from_numpy(logits)[None])
    assert torch.equal(torch.tensor(actual), expected[0])


def test_presence_and_frequency_look_at_the_output_alone() -> None:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, as OpenAI's API reference has it."""
    actual = edited([1, 1, 1, 1], presence_penalty=0.5, frequency_penalty=0.25, prompt=[0, 0], output=[1, 2, 2])
    assert actual == [1, 0.25, 0, 1]


def test_repetition_comes_before_the_terms() -> None:
    wants = {"repetition_penalty": 2.0, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    assert edited([4, 4, -4], **wants, prompt=[0], output=[1, 1, 2]) == [2, 1, -8.75]


def test_bias() -> None:
    logits = np.random.default_rng(1).standard_normal(20).astype(np.float32)
    bias = {3: -100.0, 7: 2.5, 19: 0.125}
    processor = oracle.SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()])
    expected = processor(torch.tensor([[0]]), torch.from_numpy(logits)[None])
    assert torch.equal(torch.tensor(edited(logits.tolist(), logit_bias=bias)), expected[0])


def test_bans_hold_whatever_the_bias() -> None:
    assert edited([1, 2, 3], banned=[1], logit_bias={1: 100.0, 2: -1.0}) == [1, -INF, 2]
    assert edited([1, 2, 3], allowed=[0, 2], logit_bias={1: 100.0}) == [1, -INF, 3]
    assert edited([1, 2, 3], allowed=[0, 2], banned=[2]) == [1, -INF, -INF]


def test_rows_are_changed_each_as_it_wants() -> None:
    logits = np.tile(np.array([1, 2, 3], np.float32), (5, 1))
    raw = logits.copy()
    rows = [
        {},
        {"allowed": [1]},
        {"banned": [0, 1]},
        {"logit_bias": {2: 1.0}},
        {"presence_penalty": 1.0, "output": [0]},
    ]
    assert edit_logits(logits, sampling_inputs(rows)).tolist() == [
        [1, 2, 3],
        [-INF, 2, -INF],
        [-INF, -INF, 3],
        [1, 2, 4],
        [0, 2, 3],
    ]
    assert logits.tobytes() == raw.tobytes()  # logprobs are of the raw logits


@pytest.mark.parametrize("rows", [[], [{}], [{}, {"logprobs": 3}]])
def test_plain_rows_are_not_copied(rows: list[dict[str, object]]) -> None:
    logits = np.zeros((len(rows), 3), np.float32)
    assert edit_logits(logits, sampling_inputs(rows)) is logits
