"""What must come out of a request: computed alone, at once and naively, with nothing of the engine but the hash."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from random import Random

from headrace.config.limits import Limits
from headrace.contracts.model_runner import TokenLogprobs
from headrace.simulation.fake_tokenizer import FakeTokenizer
from headrace.simulation.hash_model import context_values, next_token, prompt_logprob, root_value, slot_value
from headrace.simulation.scenario import VOCAB_SIZE, RequestSpec, Scenario


@dataclass(frozen=True)
class Answer:
    """One choice, as a user gets it. `finish_reason` and `stop_reason` are the API's."""

    token_ids: list[int]
    text: str
    finish_reason: str
    stop_reason: str | int | None


def prompt_of(spec: RequestSpec) -> list[int]:
    """Requests of a family begin alike."""
    shared = Random(spec.family).choices(range(VOCAB_SIZE), k=spec.shared)
    own = Random(~spec.name).choices(range(VOCAB_SIZE), k=spec.own)
    prompt = shared + own
    root, seed = root_value(spec.cache_salt), choice_seeds(spec)[0]
    for _ in range(spec.continues):
        prompt.append(next_token(context_values(prompt, root), seed=seed, vocab_size=VOCAB_SIZE))
    return prompt + [VOCAB_SIZE] * spec.bad_token


def choice_seeds(spec: RequestSpec) -> list[int]:
    """Requests of a family draw alike, so that their answers are shared beginnings too, as in a conversation."""
    return [spec.family * 1000 + index for index in range(spec.n)]


def refusal_code(spec: RequestSpec, scenario: Scenario) -> str | None:
    """The code of the error that the engine must answer with; None for a request that it must serve."""
    if spec.num_prompt_tokens == 0:
        return "invalid_value"
    if spec.num_prompt_tokens >= scenario.max_model_len:
        return "context_length_exceeded"
    if spec.bad_token:
        return "invalid_value"
    most = max_total_tokens(spec, scenario) - 1  # the last token needs no slot
    return "kv_capacity_exceeded" if -(-most // scenario.block_size) > scenario.num_blocks else None


def max_total_tokens(spec: RequestSpec, scenario: Scenario) -> int:
    """Prompt and the longest answer that it may get."""
    if spec.max_tokens is None:
        return scenario.max_model_len
    return min(spec.num_prompt_tokens + spec.max_tokens, scenario.max_model_len)


def answer_alone(spec: RequestSpec, scenario: Scenario, seed: int) -> Answer:
    """The choice with this seed."""
    eos = set() if spec.ignore_eos else set(scenario.eos_token_ids)
    ends = eos | set(spec.stop_token_ids)
    values, value = [], root_value(spec.cache_salt)
    for token_id in prompt_of(spec):
        value = slot_value(value, token_id)
        values.append(value)
    output: list[int] = []
    most = max_total_tokens(spec, scenario)
    while True:
        banned = ends if len(output) < spec.min_tokens else ()
        token_id = next_token(values, seed=seed, vocab_size=VOCAB_SIZE, banned=banned)
        output.append(token_id)
        value = slot_value(value, token_id)
        values.append(value)
        if token_id in ends:
            reason: tuple[str, str | int | None] = ("stop", None if token_id in eos else token_id)
            break
        if len(values) == most:
            reason = ("length", None)
            break
    return with_stop_strings(spec, scenario, output, *reason)


def prompt_logprobs_alone(spec: RequestSpec) -> list[TokenLogprobs | None] | None:
    if not spec.prompt_logprobs:
        return None
    prompt = prompt_of(spec)
    values = context_values(prompt[:-1], root_value(spec.cache_salt))
    return [None, *map(prompt_logprob, values, prompt[1:])]


def with_stop_strings(
    spec: RequestSpec, scenario: Scenario, output: list[int], finish_reason: str, stop_reason: str | int | None
) -> Answer:
    """The text of all tokens, cut at the stop string that is complete first. None counts in the text of the first
    `min_tokens`."""
    tokenizer = FakeTokenizer(frozenset(scenario.eos_token_ids))
    shown = output[:-1] if finish_reason == "stop" and not spec.include_stop else output
    early = seen = len(text_of(shown[: spec.min_tokens], tokenizer, final=False))
    is_watched = bool(spec.stop) and len(output) > spec.min_tokens
    for num_tokens in range(spec.min_tokens + 1, len(output) + 2 if is_watched else 0):  # the last round is the flush
        text = text_of(shown[:num_tokens], tokenizer, final=num_tokens > len(output))
        for end in range(seen + 1, len(text) + 1):
            complete = [stop for stop in spec.stop if text[early:end].endswith(stop)]
            if complete:
                stop = max(complete, key=len)
                cut = text[: end if spec.include_stop else end - len(stop)]
                return Answer(output[:num_tokens], cut, "stop", stop)
        seen = len(text)
    return Answer(output, text_of(shown, tokenizer, final=True), finish_reason, stop_reason)


def text_of(token_ids: list[int], tokenizer: FakeTokenizer, *, final: bool) -> str:
    """`final`: a character that is not complete will not become so."""
    data = b"".join(tokenizer.token_bytes(t) for t in token_ids if not tokenizer.is_special(t))
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(data, final)


def limits_of(scenario: Scenario) -> Limits:
    return Limits(vocab_size=VOCAB_SIZE, max_model_len=scenario.max_model_len)
