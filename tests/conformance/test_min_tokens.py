"""min_tokens through the whole engine: the stop tokens have no chance before, and their usual one after."""

from __future__ import annotations

import json

import pytest

from headrace.contracts.sampling_params import SamplingParams
from tests.conformance.engine_runs import make_client, run_requests
from tests.tiny_model import TINY_CONFIG

PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG | {"vocab_size": 64, "eos_token_id": [2, 3]}))
    return make_client(model=str(folder), load_format="dummy", max_model_len=64)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_min_tokens(client, temperature):
    def ask(**params: object) -> list[int]:
        sampling = SamplingParams(temperature=temperature, seed=1, max_tokens=20, **params)
        return run_requests(client, {"r": PROMPT}, sampling)["r"]

    free = ask(ignore_eos=True)
    stop = free[3]
    assert ask(ignore_eos=True, stop_token_ids=(stop,)) == free[: free.index(stop) + 1]
    held = ask(ignore_eos=True, stop_token_ids=(stop,), min_tokens=8)
    assert len(held) > 8
    assert stop not in held[:8]
    if temperature == 0:  # else the same random number finds another token, as less is left to choose from
        assert held[: free.index(stop)] == free[: free.index(stop)]


def test_end_of_sequence_is_held_back_too(client):
    every = tuple(t for t in range(64) if t not in (2, 3))
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=20, min_tokens=6, stop_token_ids=every[:40])
    tokens = run_requests(client, {"r": PROMPT}, params)["r"]
    assert len(tokens) > 6
    assert not {2, 3, *every[:40]} & set(tokens[:6])
