"""The demo model: tokens of chat prompts against a plain torch forward of the same weights, alone and together."""

from __future__ import annotations

import pytest

from headrace.contracts.sampling_params import SamplingParams
from tests.conformance.engine_runs import make_client, run_requests
from tests.conformance.greedy_reference import assert_greedy
from tests.golden.demo_model import chat_prompts, reference_model


@pytest.fixture(scope="module")
def asked():
    return chat_prompts()


@pytest.fixture(scope="module")
def client():
    return make_client(dtype="float32", max_num_seqs=32, max_model_len=1024)


@pytest.fixture(scope="module")
def reference():
    return reference_model()


@pytest.mark.slow
def test_greedy_tokens_equal_a_plain_forward(client, asked, reference):
    tokens = run_requests(client, asked, SamplingParams(temperature=0.0, seed=0, max_tokens=64))
    assert_greedy(reference, asked, tokens, 1e-3)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # a minute on numpy and two cores, and numpy suffers most where others use them too
def test_sampled_tokens_are_the_same_alone_and_together(client, asked):
    params = {r: SamplingParams(temperature=0.9, top_p=0.95, seed=i, max_tokens=24) for i, r in enumerate(asked)}
    together = run_requests(client, asked, params)
    assert len({tuple(t) for t in together.values()}) == len(asked)
    for request_id, prompt in asked.items():
        assert run_requests(client, {request_id: prompt}, params) == {request_id: together[request_id]}
