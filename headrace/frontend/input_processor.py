"""From what a caller asks to what the engine core gets: checks, templating, tokenizing, seeds, ids.

Runs in a thread, never on the event loop: its work grows with the prompt. Shared by HTTP and the offline API, so that
both refuse the same requests with the same words. Sizes are checked before anything of that size is made.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Sequence

import msgspec

from headrace.config.limits import Limits
from headrace.config.resolved import HeadraceConfig
from headrace.contracts.engine import EngineCoreRequest
from headrace.contracts.sampling_params import MAX_COUNT, SamplingParams
from headrace.errors import ConfigError, ContextLengthError, InvalidParameterError, ModelFormatError
from headrace.frontend.chat_prompt import ChatPrompt, ChatRenderer, RenderedChat
from headrace.frontend.chat_template import ChatTemplate
from headrace.frontend.tokenizer.load import load_tokenizer
from headrace.frontend.tokenizer.tokenizer import Tokenizer


class Scheduling(msgspec.Struct, frozen=True):
    """What a caller may say about how its request is scheduled."""

    priority: int = 0  # lower goes first; only where the server schedules by priority
    cache_salt: str | None = None  # cached prefixes are shared only within the same salt

    def check(self, *, has_priorities: bool) -> None:
        if not -MAX_COUNT <= self.priority <= MAX_COUNT:
            raise InvalidParameterError(f"priority must be between {-MAX_COUNT} and {MAX_COUNT}.", param="priority")
        if self.priority and not has_priorities:
            raise InvalidParameterError(
                "priority needs a server that was started with --scheduling-policy priority.", param="priority"
            )
        if self.cache_salt is not None and not 0 < len(self.cache_salt) <= MAX_SALT_LENGTH:
            raise InvalidParameterError(
                f"cache_salt must have between 1 and {MAX_SALT_LENGTH} characters.", param="cache_salt"
            )


DEFAULT_SCHEDULING = Scheduling()
MAX_SALT_LENGTH = 256

Prompt = str | Sequence[int] | ChatPrompt


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request that has passed every check. `core_requests` has one sequence for each of its `n` choices."""

    label: str  # the caller's name for it; the ids inside are our own
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    core_requests: list[EngineCoreRequest]
    arrival_monotonic: float  # seconds, time.monotonic()


class InputProcessor:
    def __init__(
        self,
        limits: Limits,
        tokenizer: Tokenizer,
        *,
        client_index: int = 0,
        has_priorities: bool = False,
        chat_template: str | None = None,
    ) -> None:
        """`chat_template` takes the place of the model's own. Raises `ConfigError` if it does not compile, and
        `ModelFormatError` if the model's does not."""
        self.tokenizer = tokenizer
        self._limits = limits
        self._client_index = client_index
        self._has_priorities = has_priorities
        self._max_characters = limits.max_model_len * tokenizer.facts.max_token_length
        self._chat_renderer = self._make_chat_renderer(chat_template)

    @classmethod
    def from_config(cls, config: HeadraceConfig) -> InputProcessor:
        """Raises `ModelFormatError` or `UnsupportedModelError` for the files of the tokenizer, `ConfigError` for a
        chat template."""
        return cls(
            config.limits,
            load_tokenizer(config.model.tokenizer),
            has_priorities=config.scheduler.policy == "priority",
            chat_template=config.model.chat_template,
        )

    def process(
        self,
        prompt: Prompt,
        params: SamplingParams,
        label: str | None = None,
        scheduling: Scheduling = DEFAULT_SCHEDULING,
    ) -> PreparedRequest:
        """Raises a `RequestError` for whatever is wrong with the request."""
        arrival_time, arrival_monotonic = time.time(), time.monotonic()
        params.check(self._limits)
        scheduling.check(has_priorities=self._has_priorities)
        text, prompt_token_ids = self._prompt_tokens(prompt)
        max_tokens = self._answer_length(params, len(prompt_token_ids), _param_of(prompt))
        seed = params.seed if params.seed is not None else int.from_bytes(os.urandom(8), signed=True)
        bad_token_ids = self._bad_token_ids(params.bad_words)
        request_id = secrets.token_hex(10)
        core_requests = [
            EngineCoreRequest(
                request_id=f"{request_id}-{index}",
                client_index=self._client_index,
                prompt_token_ids=prompt_token_ids,
                output_token_ids=[],
                sampling_params=params.for_core(
                    seed=choice_seed(seed, index),
                    max_tokens=max_tokens,
                    bad_token_ids=bad_token_ids,
                    prompt_logprobs=None if index else params.prompt_logprobs,
                ),
                arrival_time=arrival_time,
                priority=scheduling.priority,
                cache_salt=scheduling.cache_salt,
            )
            for index in range(params.n)
        ]
        return PreparedRequest(label or request_id, text, prompt_token_ids, params, core_requests, arrival_monotonic)

    def tokenize(self, prompt: str | ChatPrompt, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text or a conversation, for callers that want no answer: of any number, none included.

        `add_special_tokens` is about texts: a chat template prints every special token itself. Raises a `RequestError`
        for a conversation that is wrong and for texts far longer than the context."""
        if isinstance(prompt, ChatPrompt):
            return self._encode_chat(self._render(prompt))
        return self._encode_text(prompt, add_special_tokens=add_special_tokens)

    def detokenize(self, token_ids: Sequence[object]) -> str:
        """The text of token ids, that of special tokens included. Bytes that are no UTF-8 are U+FFFD.

        Raises a `RequestError` for ids that are not in the vocabulary, and for more of them than the context has."""
        if len(token_ids) > self._limits.max_model_len:
            raise ContextLengthError(
                f"This model's context has {self._limits.max_model_len} tokens, but there are {len(token_ids)}.",
                param="tokens",
            )
        return b"".join(map(self.tokenizer.token_bytes, self._check_token_ids(token_ids, "tokens"))).decode(
            errors="replace"
        )

    def _prompt_tokens(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """The prompt's text, where it has one, and its token ids: not empty, each in the vocabulary, shorter than the
        context."""
        param = _param_of(prompt)
        given: object = prompt
        if not isinstance(given, Sequence | ChatPrompt) or isinstance(given, bytes | bytearray):
            raise InvalidParameterError("A prompt must be a text, a list of token ids or a ChatPrompt.", param=param)
        text: str | None = None
        if isinstance(prompt, str):
            text, token_ids = prompt, self._encode_text(prompt, add_special_tokens=True)
        elif isinstance(prompt, ChatPrompt):
            rendered = self._render(prompt)
            token_ids = self._encode_chat(rendered)
            text = rendered.shown
        else:
            self._check_prompt_length(len(prompt), param)
            token_ids = list(prompt)
        if not token_ids:
            raise InvalidParameterError("The prompt is empty.", param=param)
        self._check_prompt_length(len(token_ids), param)
        return text, self._check_token_ids(token_ids, param)

    def _render(self, prompt: ChatPrompt) -> RenderedChat:
        if self._chat_renderer is None:
            raise InvalidParameterError(
                "This model has no chat template, so it cannot take messages; use /v1/completions.", param="messages"
            )
        return self._chat_renderer.render(prompt)

    def _encode_text(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self._check_text(text, "prompt")
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _encode_chat(self, rendered: RenderedChat) -> list[int]:
        self._check_text(rendered.text, "messages")
        return self.tokenizer.encode_rendered(rendered.text, rendered.restore)

    def _check_text(self, text: str, param: str) -> None:
        """Told by its length alone, a text that cannot fit is not worth the work of tokenizing."""
        if len(text) > self._max_characters:
            least = -(-len(text) // self.tokenizer.facts.max_token_length)
            raise ContextLengthError(
                f"This model's context has {self._limits.max_model_len} tokens, but the prompt has at least {least}.",
                param=param,
            )

        _check_characters(text, param)

    def _check_prompt_length(self, num_tokens: int, param: str) -> None:
        """At least one position must be left for the answer."""
        if num_tokens >= self._limits.max_model_len:
            raise ContextLengthError(
                f"This model's context has {self._limits.max_model_len} tokens, prompt and answer together, but the "
                f"prompt alone has {num_tokens}.",
                param=param,
            )

    def _check_token_ids(self, token_ids: Sequence[object], param: str) -> list[int]:
        """The same ids, known to be in the vocabulary."""
        vocab_size = self._limits.vocab_size
        checked: list[int] = []
        for entry in token_ids:
            token_id = int(entry) if isinstance(entry, float) and entry.is_integer() else entry  # JSON's 17.0 is 17
            if not isinstance(token_id, int) or isinstance(token_id, bool):
                raise InvalidParameterError("A list of token ids must hold integers only.", param=param)
            if not 0 <= token_id < vocab_size:
                raise InvalidParameterError(f"Token ids must be between 0 and {vocab_size - 1}.", param=param)
            checked.append(token_id)
        return checked

    def _make_chat_renderer(self, chat_template: str | None) -> ChatRenderer | None:
        facts = self.tokenizer.facts
        source = chat_template or facts.chat_template
        if source is None:
            return None
        try:
            template = ChatTemplate(source, facts.template_variables, max_characters=self._max_characters)
        except ModelFormatError as error:
            if chat_template is None:
                raise
            raise ConfigError(error.message, flag="--chat-template") from None
        return ChatRenderer(
            template,
            self.tokenizer.control_texts,
            max_characters=self._max_characters,
            max_messages=self._limits.max_messages,
        )

    def _bad_token_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Each word as it is written within another and, with the space before it, as a word of its own."""
        for word in words:
            _check_characters(word, "bad_words")
        variants = [variant for word in words for variant in (word.lstrip(), " " + word.lstrip())]
        encoded = (tuple(self.tokenizer.encode(variant, add_special_tokens=False)) for variant in variants)
        return tuple(dict.fromkeys(token_ids for token_ids in encoded if token_ids))

    def _answer_length(self, params: SamplingParams, num_prompt_tokens: int, param: str) -> int:
        """max_tokens, by default what the context leaves. As with OpenAI and vLLM, a wish for more than that is refused
        and not cut."""
        left = self._limits.max_model_len - num_prompt_tokens
        if params.max_tokens is None:
            return left
        if params.max_tokens > left:
            raise ContextLengthError(
                f"This model's context has {self._limits.max_model_len} tokens, prompt and answer together, but "
                f"{num_prompt_tokens + params.max_tokens} are asked for: {num_prompt_tokens} in the prompt and "
                f"{params.max_tokens} in the answer.",
                param=param,
            )
        return params.max_tokens


def choice_seed(seed: int, index: int) -> int:
    """The seed of one choice of a request: the first has the request's own, the others a hash of it and their index.

    So `n=2` gives what two requests with these seeds give. Blake2b (RFC 7693) over both as 8 little-endian bytes."""
    if index == 0:
        return seed
    message = seed.to_bytes(8, "little", signed=True) + index.to_bytes(8, "little")
    digest = hashlib.blake2b(message, digest_size=8, person=b"choice seed").digest()
    return int.from_bytes(digest, "little", signed=True)


def _check_characters(text: str, param: str) -> None:
    """Python has texts that are none: JSON's decoder refuses them, but a script may have made one."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameterError(
            f"A text must not have lone surrogates, as at its character {error.start}.", param=param
        ) from None


def _param_of(prompt: Prompt) -> str:
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"
