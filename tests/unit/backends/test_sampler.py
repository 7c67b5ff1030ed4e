from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.backends.numpy.sampler import NumpySampler, sample_row
from headrace.model.ops import SamplingInputs

Float32 = NDArray[np.float32]


def naive(logits: Float32, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float) -> int:
    """The definition, with Python's lists: every step on (id, weight) pairs."""
    top = float(logits.max())
    kept = [(token, math.exp((float(logit) - top) / temperature)) for token, logit in enumerate(logits)]
    kept = [(token, weight) for token, weight in kept if weight >= min_p]
    if 0 < top_k < len(kept):
        least = sorted((weight for _, weight in kept), reverse=True)[top_k - 1]
        kept = [(token, weight) for token, weight in kept if weight >= least]
    if top_p < 1:
        wanted = top_p * sum(weight for _, weight in kept)
        nucleus, reached = [], 0.0
        for token, weight in sorted(kept, key=lambda pair: (-pair[1], pair[0])):
            nucleus.append((token, weight))
            reached += weight
            if reached >= wanted:
                break
        kept = sorted(nucleus)
    wanted, reached = uniform * sum(weight for _, weight in kept), 0.0
    for token, weight in kept:
        reached += weight
        if reached > wanted:
            return token
    raise AssertionError("uniform must be below 1")


# Logits on a grid: equal ones are common, and no sum comes to within rounding of a bound by accident.
logits_strategy = st.lists(st.integers(-20, 20), min_size=1, max_size=700).map(
    lambda values: np.array(values, np.float32) / 4
)


@settings(max_examples=300, deadline=None)
@given(
    logits=logits_strategy,
    temperature=st.sampled_from([0.3, 0.9, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 40, 1000]),
    top_p=st.sampled_from([1.0, 0.937, 0.513, 0.0123]),
    min_p=st.sampled_from([0.0, 0.0517, 0.31, 1.0]),
    uniform=st.floats(0.001, 0.999),
)
def test_a_row_is_sampled_as_the_definition_says(
    logits: Float32, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float
) -> None:
    expected = naive(logits, temperature, top_k, top_p, min_p, uniform)
    assert expected == sample_row(
        logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, uniform=uniform
    )


def sample(logits: Float32, **columns: object) -> list[int]:
    n = len(logits)
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "uniform": 0.5} | columns
    inputs = SamplingInputs(
        **{
            name: np.broadcast_to(np.asarray(value, np.int32 if name == "top_k" else np.float64), n).copy()
            for name, value in defaults.items()
        }
    )
    return NumpySampler().sample(logits, inputs).token_ids.tolist()


def test_greedy_takes_the_lowest_id_among_the_highest() -> None:
    logits = np.array([[0, 3, 1, 3], [5, 5, 5, 5], [-np.inf, -1, -2, -3]], np.float32)
    assert sample(logits, temperature=0.0) == [1, 0, 1]


def test_frequencies_follow_the_distribution() -> None:
    logits = np.random.default_rng(3).standard_normal(12).astype(np.float32)
    draws = 20_000
    uniform = (np.arange(draws) + 0.5) / draws  # evenly spread, so that the counts are exact to one draw
    tokens = sample(np.tile(logits, (draws, 1)), temperature=0.7, uniform=uniform)
    weights = np.exp(logits.astype(np.float64) / 0.7)
    expected = draws * weights / weights.sum()
    assert np.abs(np.bincount(tokens, minlength=12) - expected).max() <= 1.5


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    generator = np.random.default_rng(4)
    logits = generator.standard_normal((64, 5000)).astype(np.float32)
    columns = {
        "temperature": generator.choice([0.0, 0.5, 1.3], 64),
        "top_k": generator.choice([0, 5, 300], 64),
        "top_p": generator.choice([1.0, 0.9, 0.2], 64),
        "min_p": generator.choice([0.0, 0.1], 64),
        "uniform": generator.random(64),
    }
    together = sample(logits, **columns)
    for rows in (generator.permutation(64), np.array([5]), np.arange(10, 20)):
        alone = sample(logits[rows], **{name: column[rows] for name, column in columns.items()})
        assert alone == [together[row] for row in rows]


@pytest.mark.parametrize("temperature", [1e-6, 1e-300])
def test_a_tiny_temperature_is_as_good_as_greedy(temperature: float) -> None:
    logits = np.random.default_rng(5).standard_normal((1, 1000)).astype(np.float32)
    assert sample(logits, temperature=temperature) == [logits.argmax()]


def test_no_rows() -> None:
    assert sample(np.zeros((0, 10), np.float32)) == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_no_number_has_no_chance(temperature: float) -> None:
    logits = np.array([[np.nan, 1, 0], [np.nan] * 3, [-np.inf] * 3, [0, np.inf, np.inf]], np.float32)
    assert sample(logits, temperature=temperature, uniform=0.5) == [1, 0, 0, 1]
