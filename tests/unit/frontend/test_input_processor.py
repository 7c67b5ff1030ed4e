"""What becomes of prompts and parameters, and which are refused."""

from __future__ import annotations

import pytest

from headrace.contracts.engine import EngineCoreRequest
from headrace.contracts.sampling_params import SamplingParams
from headrace.errors import ContextLengthError, InvalidParameterError, RequestError
from headrace.frontend.chat_prompt import ChatPrompt
from headrace.frontend.input_processor import choice_seed
from tests.unit.frontend.serving import MAX_MODEL_LEN

VOCAB_SIZE = 49152
DERIVED = [-5760783379761774798, -2496093080393759568]  # of the seed -5, for the choices 1 and 2
HELLO = ChatPrompt([{"role": "user", "content": "Hello"}])


def core(prepared) -> EngineCoreRequest:
    (request,) = prepared.core_requests
    return request


def test_a_text_becomes_its_tokens(input_processor):
    prepared = input_processor.process("Hello there", SamplingParams(), "mine")
    assert (prepared.label, prepared.prompt) == ("mine", "Hello there")
    assert core(prepared).prompt_token_ids == prepared.prompt_token_ids == [19556, 665]
    assert core(prepared).request_id != "mine"


def test_messages_become_the_tokens_of_their_template(input_processor):
    prepared = input_processor.process(HELLO, SamplingParams())
    assert prepared.prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prepared.prompt_token_ids[0] == 1  # <|im_start|> as one token
    assert prepared.prompt_token_ids.count(1) == 3


def test_the_engine_core_gets_what_it_needs_and_no_more(input_processor):
    params = SamplingParams(n=2, stop=("x",), temperature=0.5, max_tokens=7)
    first, second = input_processor.process("Hi", params).core_requests
    assert first.sampling_params.stop == ()
    assert first.sampling_params.max_tokens == 7
    assert first.sampling_params.temperature == 0.5
    assert first.sampling_params.seed is not None
    assert first.sampling_params.seed != second.sampling_params.seed
    assert first.request_id != second.request_id


def test_choices_have_seeds_of_their_own_that_others_can_derive(input_processor):
    seeds = [
        request.sampling_params.seed
        for request in input_processor.process("Hi", SamplingParams(n=3, seed=-5)).core_requests
    ]
    assert seeds == [choice_seed(-5, index) for index in range(3)] == [-5, *DERIVED]


def test_requests_without_a_seed_get_different_ones(input_processor):
    seeds = {core(input_processor.process("Hi", SamplingParams())).sampling_params.seed for _ in range(8)}
    assert len(seeds) == 8


def test_a15_without_max_tokens_the_context_is_the_bound(input_processor):
    assert core(input_processor.process([5] * 10, SamplingParams())).sampling_params.max_tokens == MAX_MODEL_LEN - 10


@pytest.mark.parametrize("prompt", [[-1], [VOCAB_SIZE], [2**40], [5279552648203111001], [10**30]])
def test_a05_a06_token_ids_outside_the_vocabulary_are_refused(input_processor, prompt):
    with pytest.raises(InvalidParameterError, match=f"between 0 and {VOCAB_SIZE - 1}") as caught:
        input_processor.process(prompt, SamplingParams())
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("prompt", [["5"], [5, None], [True], [1.5], [[1]]])
def test_prompts_of_other_things_than_token_ids_are_refused(input_processor, prompt):
    with pytest.raises(InvalidParameterError, match="integers only"):
        input_processor.process(prompt, SamplingParams())


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ("one \ud800", SamplingParams(), "prompt"),
        (ChatPrompt([{"role": "user", "content": "\udfff"}]), SamplingParams(), "messages"),
        ("one", SamplingParams(bad_words=("\ud800",)), "bad_words"),
    ],
    ids=["prompt", "messages", "bad_words"],
)
def test_half_characters_are_refused(input_processor, prompt, params, param):
    with pytest.raises(InvalidParameterError, match="lone surrogates") as caught:
        input_processor.process(prompt, params)
    assert caught.value.param == param


@pytest.mark.parametrize("prompt", ["", []])
def test_a07_an_empty_prompt_is_refused(input_processor, prompt):
    with pytest.raises(InvalidParameterError, match="empty"):
        input_processor.process(prompt, SamplingParams())


def test_a08_no_messages_are_refused(input_processor):
    with pytest.raises(InvalidParameterError, match="at least one message"):
        input_processor.process(ChatPrompt([]), SamplingParams())


@pytest.mark.parametrize("num_tokens", [MAX_MODEL_LEN, 2 * MAX_MODEL_LEN])
def test_a24_a_prompt_that_fills_the_context_is_refused_with_both_sizes(input_processor, num_tokens):
    with pytest.raises(ContextLengthError, match=f"{MAX_MODEL_LEN} tokens.* {num_tokens}\\.$"):
        input_processor.process([5] * num_tokens, SamplingParams())


def test_prompt_and_answer_may_fill_the_context_to_the_last_token(input_processor):
    prepared = input_processor.process([5] * (MAX_MODEL_LEN - 1), SamplingParams(max_tokens=1))
    assert core(prepared).sampling_params.max_tokens == 1


def test_an_answer_that_cannot_fit_is_refused_with_all_sizes(input_processor):
    with pytest.raises(ContextLengthError, match=r"256 tokens.* 300 .* 10 in the prompt and 290 in the answer"):
        input_processor.process([5] * 10, SamplingParams(max_tokens=290))


def test_a_text_that_is_too_long_for_its_characters_is_refused_without_tokenizing(input_processor, monkeypatch):
    monkeypatch.setattr(input_processor.tokenizer, "encode", None)
    with pytest.raises(ContextLengthError, match=r"256 tokens.*at least 123457"):
        input_processor.process("x" * (81 * 123456 + 1), SamplingParams())


def test_messages_that_are_too_long_are_refused_the_same_way(input_processor, monkeypatch):
    monkeypatch.setattr(input_processor.tokenizer, "encode", None)
    with pytest.raises(ContextLengthError) as caught:
        input_processor.process(ChatPrompt([{"role": "user", "content": "x" * 10**6}]), SamplingParams())
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"n": 10**9}, "n"),
        ({"n": 0}, "n"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": 5.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 2**70}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**5000}, "max_tokens"),
        ({"stop": ("",)}, "stop"),
        ({"stop": "a lone string"}, "stop"),
        ({"stop_token_ids": (VOCAB_SIZE + 5,)}, "stop_token_ids"),
    ],
)
def test_a10_a12_a13_a16_a17_a26_parameters_out_of_bounds_are_refused(input_processor, params, param):
    with pytest.raises(RequestError) as caught:
        input_processor.process("Hi", SamplingParams(**params))
    assert caught.value.param == param


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63), 0])
def test_a12_every_seed_of_64_bits_is_taken(input_processor, seed):
    requests = input_processor.process("Hi", SamplingParams(seed=seed, n=2)).core_requests
    assert requests[0].sampling_params.seed == seed
