"""Every sampler against the numpy truth: the same tokens and logprobs, for a row alone and in any batch.

The truth sums in float64, others need not. So a token may differ where the random number, or the border of the nucleus
or of min_p, is within 1e-5 of a decision; what is greedy may not.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.backends.numpy.logits import edit_logits
from headrace.backends.numpy.sampler import NumpySampler, sample_row
from headrace.model.ops import Backend, SamplerOutput
from tests.conformance.implementations import IMPLEMENTATIONS, Implementation
from tests.sampling_inputs import sampling_inputs

Float32 = NDArray[np.float32]
Wish = Mapping[str, object]

VOCABS = (1, 7, 64, 65, 1000, 32001)
SHAPES = ("spread", "flat", "peaked", "ties", "ascending", "descending", "mostly_banned")
TOLERANCE = 1e-5


@pytest.fixture(params=[each for each in IMPLEMENTATIONS if each.dtype == "float32"], ids=str)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    """Logits are float32, whatever matrices are."""
    found: Implementation = request.param
    return found


def make_logits(rng: np.random.Generator, shape: str, vocab: int) -> Float32:
    x = rng.standard_normal(vocab).astype(np.float32) * {"flat": 0.01, "peaked": 12}.get(shape, 3)
    if shape == "ties":
        x = np.round(x)
    elif shape == "ascending":
        x = np.sort(x)
    elif shape == "descending":
        x = np.sort(x)[::-1].copy()
    elif shape == "mostly_banned":
        x[rng.random(vocab) < 0.9] = -np.inf
        x[rng.integers(vocab)] = 0
    return x


def make_wish(rng: np.random.Generator, vocab: int) -> dict[str, object]:
    """Each wish with its own chance, so that all meet all."""

    def some_ids(most: int) -> list[int]:
        return rng.choice(vocab, min(vocab, int(rng.integers(1, most, endpoint=True))), replace=False).tolist()

    def sometimes(value: object, chance: float) -> dict[str, object]:
        return value if rng.random() < chance else {}  # type: ignore[return-value]

    wish = {"temperature": float(rng.choice([0.0, 0.3, 0.9, 1.7])), "uniform": float(rng.uniform(0.001, 0.999))}
    wish |= sometimes({"top_k": int(rng.choice([1, 3, 50, 700, 10**6]))}, 0.5)
    wish |= sometimes({"top_p": float(rng.choice([0.0123, 0.513, 0.9, 0.99]))}, 0.5)
    wish |= sometimes({"min_p": float(rng.choice([0.0517, 0.31, 1.0]))}, 0.3)
    wish |= sometimes({"repetition_penalty": float(rng.choice([0.7, 1.3])), "prompt": some_ids(40)}, 0.3)
    wish |= sometimes({"presence_penalty": 0.625, "frequency_penalty": -0.3, "output": some_ids(9) * 2}, 0.3)
    wish |= sometimes({"logit_bias": {token: float(rng.uniform(-9, 9)) for token in some_ids(9)}}, 0.3)
    wish |= sometimes({"banned": some_ids(5)}, 0.2)
    wish |= sometimes({"allowed": some_ids(vocab)}, 0.1)
    wish |= sometimes({"logprobs": int(rng.choice([0, 1, 20]))}, 0.5)
    return wish


def ask(backend: Backend, logits: Float32, wishes: Sequence[Wish]) -> SamplerOutput:
    return backend.sampler.sample(logits.copy(), sampling_inputs(wishes))


def near_decisions(logits: Float32, wish: Wish) -> list[int]:
    """Tokens that the truth chooses when the borders are moved a little."""
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "uniform": 0.5}
    wanted = {name: wish.get(name, default) for name, default in defaults.items()}
    moves = (-TOLERANCE, 0, TOLERANCE)
    return [
        sample_row(
            logits,
            **wanted
            | {
                "uniform": min(max(wanted["uniform"] + move, 1e-12), 1 - 1e-12),
                "top_p": wanted["top_p"] + nucleus_move if wanted["top_p"] < 1 else 1.0,
                "min_p": wanted["min_p"] * (1 + min_p_move),
            },
        )
        for move, nucleus_move, min_p_move in itertools.product(moves, repeat=3)
    ]


def assert_tokens(output: SamplerOutput, logits: Float32, wishes: Sequence[Wish]) -> None:
    inputs = sampling_inputs(wishes)
    truth = NumpySampler().sample(logits, inputs).token_ids
    assert output.token_ids.dtype == np.int32
    edited = edit_logits(logits, inputs)
    for row in np.flatnonzero(output.token_ids != truth):
        assert inputs.temperature[row] > 0
        token, near = output.token_ids[row], near_decisions(edited[row], wishes[row])
        assert min(near) <= token <= max(near), (wishes[row], token, truth[row])
        assert edited[row, token] > -np.inf


def assert_logprobs(output: SamplerOutput, logits: Float32, wishes: Sequence[Wish]) -> None:
    inputs = sampling_inputs(wishes)
    if inputs.logprobs is None:
        assert output.logprobs is None
        return
    found = output.logprobs
    assert found is not None
    wide = logits.astype(np.float64)
    logprobs = (
        wide - np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1, keepdims=True)) - wide.max(1, keepdims=True)
    )
    for place, (row, num_top) in enumerate(zip(inputs.logprobs.rows, inputs.logprobs.num_top, strict=True)):
        token = output.token_ids[row]
        np.testing.assert_allclose(found.sampled[place], logprobs[row, token], atol=TOLERANCE)
        assert found.ranks[place] == (logits[row] >= logits[row, token]).sum()
        top = slice(found.top_starts[place], found.top_starts[place + 1])
        assert found.top_ids[top].tolist() == np.argsort(-logits[row], kind="stable")[:num_top].tolist()
        np.testing.assert_allclose(found.top[top], logprobs[row, found.top_ids[top]], atol=TOLERANCE)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("shape", SHAPES)
def test_samplers_agree_with_the_truth(backend: Backend, shape: str, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    num_rows = 12 if vocab > 10_000 else 100
    logits = np.stack([make_logits(rng, shape, vocab) for _ in range(num_rows)])
    wishes = [make_wish(rng, vocab) for _ in range(num_rows)]
    output = ask(backend, logits, wishes)
    assert_tokens(output, logits, wishes)
    assert_logprobs(output, logits, wishes)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    # On a grid, equal logits are common, and no sum comes to within rounding of a border by accident.
    logits=st.lists(st.integers(-20, 20) | st.just(None), min_size=1, max_size=300),
    temperature=st.sampled_from([0.0, 1e-6, 0.3, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 40, 1000]),
    top_p=st.sampled_from([1.0, 0.937, 0.513, 1e-9]),
    min_p=st.sampled_from([0.0, 0.0517, 1.0]),
    uniform=st.floats(0.001, 0.999),
    num_top=st.integers(0, 20),
)
def test_any_row(
    backend: Backend,
    logits: list[int | None],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    uniform: float,
    num_top: int,
) -> None:
    row = np.array([[-np.inf if x is None else x / 4 for x in logits]], np.float32)
    wish = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "uniform": uniform}
    output = ask(backend, row, [{**wish, "logprobs": num_top}])
    if np.isfinite(row.max()):
        assert_tokens(output, row, [wish])
        assert_logprobs(output, row, [{"logprobs": num_top}])
    else:
        assert output.token_ids.tolist() == [0]


@pytest.mark.parametrize("vocab", [7, 3001])
def test_a_row_does_not_depend_on_its_neighbours(backend: Backend, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = np.stack([make_logits(rng, shape, vocab) for shape in SHAPES for _ in range(9)])
    wishes = [make_wish(rng, vocab) for _ in logits]

    def results(rows: Sequence[int]) -> dict[int, object]:
        inputs, output = (
            sampling_inputs([wishes[row] for row in rows]),
            ask(backend, logits[rows], [wishes[r] for r in rows]),
        )
        found = {row: [token] for row, token in zip(rows, output.token_ids.tolist(), strict=True)}
        if inputs.logprobs is not None and output.logprobs is not None:
            of = output.logprobs
            for place, row in enumerate(inputs.logprobs.rows):
                top = slice(of.top_starts[place], of.top_starts[place + 1])
                parts = (of.sampled[place], of.ranks[place], of.top_ids[top], of.top[top])
                found[rows[row]] += [np.asarray(part).tobytes() for part in parts]
        return found

    together = results(range(len(logits)))
    for rows in ([5], [40], range(10, 20), rng.permutation(len(logits)).tolist()):
        assert results(rows) == {row: together[row] for row in rows}


def test_the_logits_of_one_allowed_token_do_not_matter(backend: Backend) -> None:
    logits = np.stack([make_logits(np.random.default_rng(1), "peaked", 300)] * 3)
    wishes = [{"allowed": [177], "temperature": temperature, "top_p": 0.9} for temperature in (0.0, 0.5)]
    wishes += [{"banned": [token for token in range(300) if token != 177]}]
    assert ask(backend, logits, wishes).token_ids.tolist() == [177] * 3


@pytest.mark.parametrize("vocab", [1, 65, 4000])
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf], ids=str)
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_whatever_a_model_gives_a_token_comes_out(backend: Backend, vocab: int, value: float, share: float) -> None:
    rng = np.random.default_rng(2)
    wishes = [{"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.5}, {"top_k": 3000, "top_p": 0.9}]
    wishes = [{**wish, "logprobs": num_top} for wish in wishes for num_top in (0, 20)]
    logits = rng.standard_normal((len(wishes), vocab)).astype(np.float32)
    logits[rng.random(logits.shape) < share] = value
    output = ask(backend, logits, wishes)
    truth = NumpySampler().sample(logits, sampling_inputs(wishes))
    assert output.token_ids.tolist() == truth.token_ids.tolist()
    assert output.logprobs is not None
    assert truth.logprobs is not None
    assert output.logprobs.top_starts.tolist() == truth.logprobs.top_starts.tolist()
    assert ((output.logprobs.top_ids >= 0) & (output.logprobs.top_ids < vocab)).all()


def test_frequencies_follow_the_distribution(backend: Backend) -> None:
    logits = np.random.default_rng(3).standard_normal(200).astype(np.float32)
    draws = 2000
    wishes = [{"temperature": 0.7, "uniform": (place + 0.5) / draws} for place in range(draws)]
    tokens = ask(backend, np.tile(logits, (draws, 1)), wishes).token_ids
    weights = np.exp(logits.astype(np.float64) / 0.7)
    assert np.abs(np.bincount(tokens, minlength=200) - draws * weights / weights.sum()).max() <= 1.5


def test_no_rows(backend: Backend) -> None:
    output = ask(backend, np.zeros((0, 10), np.float32), [])
    assert output.token_ids.shape == (0,)
    assert output.logprobs is None
