"""One validator for HTTP and the offline API: each bound, from both sides."""

from __future__ import annotations

import math

import pytest

from headrace.config.limits import Limits
from headrace.contracts.sampling_params import OutputKind, SamplingParams
from headrace.errors import InvalidParameterError

LIMITS = Limits(vocab_size=100, max_model_len=64)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 1},
        {"n": LIMITS.max_n},
        {"temperature": 0},
        {"temperature": 2},
        {"top_p": 1e-9},
        {"top_k": -1},
        {"top_k": 10**9},
        {"min_p": 0},
        {"min_p": 1},
        {"seed": 2**63 - 1},
        {"seed": -(2**63)},
        {"seed": 0},
        {"max_tokens": 1},
        {"max_tokens": None},
        {"stop": ("a",) * LIMITS.max_stop_strings},
        {"stop_token_ids": (0, 99)},
        {"presence_penalty": -2},
        {"presence_penalty": 2},
        {"frequency_penalty": -2},
        {"frequency_penalty": 2},
        {"repetition_penalty": 1e-9},
        {"repetition_penalty": 100},
        {"logit_bias": {}},
        {"logit_bias": {0: -100, 99: 100}},
        {"allowed_token_ids": (0, 99)},
        {"allowed_token_ids": tuple(range(100))},
        {"logprobs": 0},
        {"logprobs": LIMITS.max_logprobs},
    ],
    ids=str,
)
def test_allowed(fields):
    SamplingParams(**fields).check(LIMITS)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("n", 0),
        ("n", 10**9),  # A13
        ("n", True),
        ("temperature", -1),  # A10
        ("temperature", 5),
        ("temperature", math.nan),  # A09
        ("temperature", math.inf),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 2),
        ("min_p", -math.inf),
        ("seed", 2**63),  # A12
        ("seed", -(2**63) - 1),
        ("max_tokens", 0),  # A16
        ("max_tokens", -1),  # A17
        ("stop", ("",)),  # A26
        ("stop", ("x", "")),
        ("stop", ("x" * 2000,)),
        ("stop", ("x",) * 100),
        ("stop_token_ids", (100,)),  # A04
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", (1,) * 1000),
        ("presence_penalty", 2.1),
        ("presence_penalty", math.nan),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("repetition_penalty", math.inf),
        ("repetition_penalty", 101),
        ("logit_bias", [1]),
        ("logit_bias", {100: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"1": 1.0}),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", dict.fromkeys(range(2000), 1.0)),
        ("allowed_token_ids", ()),
        ("allowed_token_ids", (100,)),
        ("allowed_token_ids", (1,) * 101),
        ("logprobs", -1),
        ("logprobs", 21),
        ("logprobs", True),
    ],
    ids=str,
)
def test_refused(param, value):
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(**{param: value}).check(LIMITS)
    assert caught.value.param == param
    assert len(caught.value.message) < 200


def test_the_core_gets_bad_words_as_tokens():
    core = SamplingParams(bad_words=("x",)).for_core(seed=5, max_tokens=7, bad_token_ids=((1, 2), (3,)))
    assert core == SamplingParams(seed=5, max_tokens=7, bad_token_ids=((1, 2), (3,)))
    with pytest.raises(InvalidParameterError):
        SamplingParams(bad_token_ids=((1, LIMITS.vocab_size),)).check_indices(LIMITS)
    with pytest.raises(InvalidParameterError):
        SamplingParams(bad_token_ids=((),)).check_indices(LIMITS)


def test_the_core_gets_no_text():
    params = SamplingParams(n=3, stop=("x",), output_kind=OutputKind.DELTA, temperature=0.5, top_k=4, ignore_eos=True)
    core = params.for_core(seed=5, max_tokens=7)
    assert core == SamplingParams(seed=5, max_tokens=7, temperature=0.5, top_k=4, ignore_eos=True)
