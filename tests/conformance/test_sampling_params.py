"""Penalties, bias, allowed ids and logprobs through the whole engine, whatever happens around a request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from headrace.contracts.engine import EngineCoreEventType
from headrace.contracts.model_runner import TokenLogprobs
from headrace.contracts.sampling_params import SamplingParams
from headrace.frontend.core_client.inproc import InprocClient
from tests.conformance.engine_runs import make_client, outputs_of, run_requests
from tests.installed_backends import INSTALLED_BACKENDS
from tests.tiny_model import TINY_CONFIG

PROMPT = [5, 6, 7]


@pytest.fixture(scope="module", params=INSTALLED_BACKENDS)
def settings(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG | {"vocab_size": 64, "eos_token_id": 2}))
    return {"model": str(folder), "load_format": "dummy", "max_model_len": 64, "backend": request.param}


@pytest.fixture(scope="module")
def client(settings):
    return make_client(**settings)


def params(**more: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "seed": 1, "max_tokens": 20, "ignore_eos": True, **more})


def ask(client: InprocClient, **more: object) -> list[int]:
    return run_requests(client, {"r": PROMPT}, params(**more))["r"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bias_and_allowed_ids_decide(client, temperature):
    assert ask(client, temperature=temperature, logit_bias={9: 100.0}) == [9] * 20
    assert set(ask(client, temperature=temperature, allowed_token_ids=(3, 8, 60))) <= {3, 8, 60}
    assert set(ask(client, temperature=temperature, allowed_token_ids=(3, 8), logit_bias={8: -100.0})) == {3}


def test_presence_penalty_lets_no_token_come_twice(client):
    """A dummy model's logits lie closer together than 2."""
    once = ask(client, presence_penalty=2.0)
    assert len(set(once)) == 20
    assert len(set(ask(client, presence_penalty=-2.0))) == 1  # what has come, comes again


def test_frequency_penalty_takes_turns(client):
    tokens = ask(client, frequency_penalty=2.0, allowed_token_ids=(3, 8))
    assert all(abs(tokens[:end].count(3) - tokens[:end].count(8)) <= 1 for end in range(21))


def test_repetition_penalty_looks_at_the_prompt_too(client):
    for bias in (50.0, -50.0):  # positive logits are divided, negative ones multiplied
        first = ask(
            client, repetition_penalty=50.0, max_tokens=1, allowed_token_ids=(6, 9), logit_bias={6: bias, 9: bias}
        )
        assert first == [9]
    other = ask(client, repetition_penalty=0.02, max_tokens=1, allowed_token_ids=(6, 9), logit_bias={6: 50.0, 9: 50.0})
    assert other == [6]


def test_bad_words_are_never_complete(client):
    distinct = {"presence_penalty": 2.0}  # no token comes twice
    plain = ask(client, **distinct)
    (first, second, third), last = plain[:3], plain[-1]
    tokens = ask(client, **distinct, bad_token_ids=((first, second), (last,)))
    assert tokens[0] == first
    assert tokens[1] != second
    assert last not in tokens
    assert ask(client, **distinct, bad_token_ids=((second, first, third), (third, last)))[:3] == plain[:3]


WISHES: Mapping[str, Mapping[str, object]] = {
    "greedy": {"logprobs": 3},
    "warm": {"temperature": 1.0, "logprobs": 0},
    "repetition": {"repetition_penalty": 1.5, "temperature": 1.0, "top_p": 0.9, "logprobs": 5},
    "terms": {"presence_penalty": 1.5, "frequency_penalty": 0.5, "top_k": 9, "temperature": 1.2},
    "bias": {"logit_bias": {9: 2.0, 10: -100.0}, "temperature": 0.8, "min_p": 0.1, "logprobs": 20},
    "words": {"bad_token_ids": ((9,), (20, 21), (7, 7, 7)), "temperature": 1.0, "allowed_token_ids": (7, 9, 20, 21)},
    "allowed": {"allowed_token_ids": tuple(range(20, 40)), "temperature": 1.0, "frequency_penalty": 0.5, "logprobs": 1},
}


def run(client: InprocClient, names: Sequence[str]) -> tuple[dict[str, list[tuple[int, object]]], int]:
    """Tokens with their logprobs by request, and how often one was preempted."""
    found: dict[str, list[tuple[int, object]]] = {name: [] for name in names}
    num_preempted = 0
    requests = {name: params(seed=len(name), max_tokens=30, **WISHES[name]) for name in names}
    for output in outputs_of(client, {name: [*PROMPT, len(name)] for name in names}, requests):
        logprobs = output.new_logprobs or [None] * len(output.new_token_ids)
        found[output.request_id] += zip(output.new_token_ids, logprobs, strict=True)
        num_preempted += sum(event.type == EngineCoreEventType.PREEMPTED for event in output.events or ())
    return found, num_preempted


def test_alone_is_together_is_preempted(settings, client):
    alone = {name: run(client, [name])[0][name] for name in WISHES}
    together, num_preempted = run(client, list(WISHES))
    assert num_preempted == 0
    assert together == alone
    small = make_client(**settings, block_size=4, num_kv_blocks_override=24, max_num_seqs=6)
    squeezed, num_preempted = run(small, list(WISHES))
    assert num_preempted > 0
    assert squeezed == alone


def test_logprobs_come_to_those_that_want_them(client):
    found, _ = run(client, ["greedy", "warm", "terms"])
    assert {logprobs for _, logprobs in found["terms"]} == {None}
    for token, logprobs in found["greedy"]:
        assert isinstance(logprobs, TokenLogprobs)
        assert logprobs.rank == 1
        assert logprobs.top[0] == (token, logprobs.logprob)
        assert len(logprobs.top) == 3
    assert all(isinstance(logprobs, TokenLogprobs) and logprobs.top == [] for _, logprobs in found["warm"])


LONG = [3 + (7 * place) % 50 for place in range(40)]


def prompt_logprobs(client: InprocClient, prompts: Mapping[str, Sequence[int]], num_top: int = 3) -> dict[str, list]:
    """Those of each prompt, all run together."""
    wanted = params(max_tokens=4, prompt_logprobs=num_top)
    found: dict[str, list[object]] = {}
    for output in outputs_of(client, prompts, wanted):
        assert (output.prompt_logprobs is not None) == (output.first_index == 0)
        if output.prompt_logprobs is not None:
            assert output.num_cached_tokens == 0
            found[output.request_id] = output.prompt_logprobs
    return found


def test_logprobs_of_a_prompt_are_those_of_an_answer_with_its_tokens(client):
    (found,) = prompt_logprobs(client, {"r": LONG}).values()
    assert len(found) == len(LONG) - 1
    for place in (1, 2, 15, 16, 17, 39):
        wanted = params(max_tokens=1, logprobs=3, allowed_token_ids=(LONG[place],))
        (output,) = outputs_of(client, {"r": LONG[:place]}, wanted)
        assert output.new_logprobs == [found[place - 1]]


def test_logprobs_of_prompts_do_not_depend_on_the_batch(settings, client):
    """Chunks, cached blocks, other requests, preemption: bit for bit the same."""
    prompts = {str(length): LONG[:length] for length in (1, 2, 17, 33, 40)}
    alone = {name: prompt_logprobs(client, {name: prompt})[name] for name, prompt in prompts.items()}
    assert [len(found) for found in alone.values()] == [0, 1, 16, 32, 39]
    run_requests(client, {"warm": LONG}, params(max_tokens=1))  # its blocks are in the cache now
    assert prompt_logprobs(client, prompts) == alone
    for more in ({"max_num_batched_tokens": 6, "max_num_seqs": 6}, {"enable_prefix_caching": False}):
        assert prompt_logprobs(make_client(**settings, **more), prompts) == alone
    small = make_client(**settings, block_size=4, num_kv_blocks_override=12, max_num_seqs=6, max_num_batched_tokens=8)
    assert prompt_logprobs(small, prompts) == alone


def test_all_wishes_beside_logprobs_of_a_prompt(client):
    """Rows of a prompt and rows of samples in one step, each with its own wishes."""
    alone = {name: run(client, [name])[0][name] for name in WISHES}
    requests = {name: params(seed=len(name), max_tokens=30, **WISHES[name]) for name in WISHES}
    requests["prompt"] = params(max_tokens=4, prompt_logprobs=2)
    found: dict[str, list[tuple[int, object]]] = {name: [] for name in requests}
    for output in outputs_of(client, {**{name: [*PROMPT, len(name)] for name in WISHES}, "prompt": LONG}, requests):
        logprobs = output.new_logprobs or [None] * len(output.new_token_ids)
        found[output.request_id] += zip(output.new_token_ids, logprobs, strict=True)
    found.pop("prompt")
    assert found == alone
