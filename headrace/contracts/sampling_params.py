"""How one request wants its tokens chosen. The same struct is public API, HTTP's target and part of the wire."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection
from typing import Protocol

import msgspec

from headrace.errors import InvalidParameterError


class OutputKind(enum.IntEnum):
    """What each `RequestOutput` carries: all text so far, only what is new, or one output at the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingLimits(Protocol):
    """The bounds that `SamplingParams.check` holds a request to (`config.limits.Limits` has them)."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_n(self) -> int: ...
    @property
    def max_stop_strings(self) -> int: ...
    @property
    def max_stop_string_length(self) -> int: ...
    @property
    def max_stop_token_ids(self) -> int: ...
    @property
    def max_logit_bias(self) -> int: ...
    @property
    def max_logprobs(self) -> int: ...
    @property
    def max_bad_words(self) -> int: ...
    @property
    def max_bad_word_length(self) -> int: ...


SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1
MAX_COUNT = 2**31 - 1  # for counts that nothing else bounds: they must fit every integer type on the way
MAX_REPETITION_PENALTY = 100.0  # far beyond what makes sense, and no logit overflows


class SamplingParams(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Sampling parameters, with the names and meanings that the field has given them.

    `for_core` clears what the engine core does not know: `n`, `stop` and everything else about text.
    """

    n: int = 1
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1: off
    min_p: float = 0.0  # relative to the most probable token
    seed: int | None = None  # None: drawn by the front end before the request is sent
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None  # None: what the context leaves
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    output_kind: OutputKind = OutputKind.CUMULATIVE
    include_stop_str_in_output: bool = False
    min_tokens: int = 0  # until then neither end-of-sequence nor a stop token or string ends the output
    presence_penalty: float = 0.0  # taken off the logit of each token that is in the output
    frequency_penalty: float = 0.0  # and this once for each time that it is there
    repetition_penalty: float = 1.0  # divides the logits, multiplies negative ones, of tokens in prompt or output
    logit_bias: dict[int, float] | None = None  # token id -> what is added to its logit
    allowed_token_ids: tuple[int, ...] | None = None  # None: every token
    logprobs: int | None = None  # how many of the most probable tokens besides the sampled one; None: no logprobs
    bad_words: tuple[str, ...] = ()  # texts that the output must not have, each at a word's beginning or within one
    bad_token_ids: tuple[tuple[int, ...], ...] = ()  # the front end's: bad_words, and how a tokenizer writes them
    prompt_logprobs: int | None = None  # as `logprobs`, for each token of the prompt after the first

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    def check(self, limits: SamplingLimits) -> None:
        """Raise `InvalidParameterError` for the first field that is out of bounds. HTTP and offline use call it."""
        check_integer("n", self.n, 1, limits.max_n)
        check_number("temperature", self.temperature, 0.0, 2.0)
        check_number("top_p", self.top_p, 0.0, 1.0, low_open=True)
        check_integer("top_k", self.top_k, -1, MAX_COUNT)
        check_number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            check_integer("seed", self.seed, SEED_MIN, SEED_MAX)
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, 1, MAX_COUNT)
        check_integer("min_tokens", self.min_tokens, 0, self.max_tokens if self.max_tokens is not None else MAX_COUNT)
        check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_number("repetition_penalty", self.repetition_penalty, 0.0, MAX_REPETITION_PENALTY, low_open=True)
        self._check_stops(limits)
        self._check_bad_words(limits)
        self.check_indices(limits)

    def check_indices(self, limits: SamplingLimits) -> None:
        """The part of `check` that an engine does not take on trust: what reaches into arrays."""
        if self.logprobs is not None:
            check_integer("logprobs", self.logprobs, 0, limits.max_logprobs)
        if self.prompt_logprobs is not None:
            check_integer("prompt_logprobs", self.prompt_logprobs, 0, limits.max_logprobs)
        check_count("stop_token_ids", self.stop_token_ids, limits.max_stop_token_ids)
        for token_id in self.stop_token_ids:
            check_integer("stop_token_ids", token_id, 0, limits.vocab_size - 1)
        self._check_logit_bias(limits)
        self._check_allowed_token_ids(limits)
        for token_ids in self.bad_token_ids:
            if not token_ids:
                raise InvalidParameterError("A bad word must have a token.", param="bad_words")
            for token_id in token_ids:
                check_integer("bad_words", token_id, 0, limits.vocab_size - 1)

    def _check_logit_bias(self, limits: SamplingLimits) -> None:
        bias: object = self.logit_bias
        if bias is None:
            return
        if not isinstance(bias, dict):
            raise InvalidParameterError("logit_bias must map token ids to numbers.", param="logit_bias")
        check_count("logit_bias", bias, limits.max_logit_bias)
        for token_id, value in bias.items():
            if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < limits.vocab_size:
                raise InvalidParameterError(
                    f"The token ids of logit_bias must be integers between 0 and {limits.vocab_size - 1}.",
                    param="logit_bias",
                )
            check_number("logit_bias", value, -100.0, 100.0)

    def _check_allowed_token_ids(self, limits: SamplingLimits) -> None:
        if self.allowed_token_ids is None:
            return
        if not self.allowed_token_ids:
            raise InvalidParameterError("allowed_token_ids must not be empty.", param="allowed_token_ids")
        check_count("allowed_token_ids", self.allowed_token_ids, limits.vocab_size)
        for token_id in self.allowed_token_ids:
            check_integer("allowed_token_ids", token_id, 0, limits.vocab_size - 1)

    def _check_stops(self, limits: SamplingLimits) -> None:
        stops: object = self.stop
        if not isinstance(stops, tuple | list):  # a lone string would pass for a list of its characters
            raise InvalidParameterError("stop must be a list of strings.", param="stop")
        check_count("stop", stops, limits.max_stop_strings)
        for text in stops:
            if not isinstance(text, str) or not text:
                raise InvalidParameterError("stop must hold non-empty strings.", param="stop")
            if len(text) > limits.max_stop_string_length:
                raise InvalidParameterError(
                    f"A stop string may have at most {limits.max_stop_string_length} characters.", param="stop"
                )
        if stops and not self.detokenize:
            raise InvalidParameterError("stop strings need detokenize to be true.", param="stop")

    def _check_bad_words(self, limits: SamplingLimits) -> None:
        words: object = self.bad_words
        if not isinstance(words, tuple | list):
            raise InvalidParameterError("bad_words must be a list of strings.", param="bad_words")
        check_count("bad_words", words, limits.max_bad_words)
        for word in words:
            if not isinstance(word, str) or not word.strip():
                raise InvalidParameterError("bad_words must hold strings that are not blank.", param="bad_words")
            if len(word) > limits.max_bad_word_length:
                raise InvalidParameterError(
                    f"A bad word may have at most {limits.max_bad_word_length} characters.", param="bad_words"
                )

    def for_core(
        self,
        *,
        seed: int,
        max_tokens: int,
        bad_token_ids: tuple[tuple[int, ...], ...] = (),
        prompt_logprobs: int | None = None,
    ) -> SamplingParams:
        """The parameters of one choice as the engine core gets them: text fields cleared, the others decided.

        One choice of a request is enough to tell of its prompt, so not every one has its `prompt_logprobs`."""
        return msgspec.structs.replace(
            self,
            n=1,
            seed=seed,
            max_tokens=max_tokens,
            stop=(),
            skip_special_tokens=True,
            detokenize=True,
            output_kind=OutputKind.CUMULATIVE,
            include_stop_str_in_output=False,
            bad_words=(),
            bad_token_ids=bad_token_ids,
            prompt_logprobs=prompt_logprobs,
        )


def check_integer(param: str, value: object, low: int, high: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidParameterError(f"{param} must be an integer.", param=param)
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidParameterError(f"{param} must be {bounds}.", param=param)


def check_number(param: str, value: object, low: float, high: float, *, low_open: bool = False) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidParameterError(f"{param} must be a finite number.", param=param)
    if value < low or value > high or (low_open and value == low):
        opening = "greater than" if low_open else "at least"
        raise InvalidParameterError(f"{param} must be {opening} {low:g} and at most {high:g}.", param=param)


def check_count(param: str, values: Collection[object], limit: int) -> None:
    if len(values) > limit:
        raise InvalidParameterError(f"{param} may have at most {limit} entries.", param=param)
