"""`Tokenizer`: one model's text-to-ids and id-to-bytes. Safe to use from several threads; encoding releases the GIL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import msgspec

from headrace.frontend.tokenizer.control_tokens import ControlTexts, TwoOriginEncoder

if TYPE_CHECKING:
    from headrace.frontend.tokenizer.byte_alphabet import TokenToBytes


class TokenizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's files say about its tokens, beside the vocabulary itself."""

    special_ids: frozenset[int]  # control tokens: text of the protocol, not of the answer
    literal_ids: frozenset[int]  # added tokens, special ones included: written as they are, in no byte alphabet
    # The longest token in characters: a text of `n` characters has at least `n / max_token_length` tokens. (Where a
    # vocabulary maps a run of unknown text to one token this is no true bound, but no useful prompt is of that kind.)
    max_token_length: int
    bos_token_id: int | None = None
    template_variables: dict[str, str] = {}  # bos_token, eos_token, ...: what chat templates may print
    chat_template: str | None = None  # jinja2 source


class TokenizerBackend(Protocol):
    """Who does the work. Encoding may be called from several threads at once and lets other threads run meanwhile."""

    vocab_size: int  # one more than the highest id
    unknown_token: str | None  # what a text becomes that the vocabulary cannot write

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Special tokens written out in the text become those tokens; `add_special_tokens` adds what the model expects
        around a plain text, whatever the text begins with."""

    def token(self, token_id: int) -> str | None:
        """A token as the vocabulary has it; None for an id that has none."""

    def literal_tokens(self) -> Mapping[str, int]:
        """The tokens that are found in a text as they are, before anything else is done with it."""

    def disguised(self, disguises: Mapping[str, str], control_ids: frozenset[int]) -> Callable[[str], list[int]]:
        """An encoder that finds each disguise where this one finds the literal token, and those tokens themselves no
        more: they are ordinary text to it. It gives none of `control_ids` for ordinary text."""


class Tokenizer:
    """A model's tokenizer. `facts` says what there is to know about it."""

    def __init__(self, backend: TokenizerBackend, token_to_bytes: TokenToBytes, facts: TokenizerFacts) -> None:
        self._backend = backend
        self._token_to_bytes = token_to_bytes
        self._bytes: dict[int, bytes] = {}  # filled as tokens are seen; never larger than the vocabulary
        self.facts = facts
        self.vocab_size = backend.vocab_size

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; special tokens written out in it become those tokens.

        `add_special_tokens` adds what the model expects around a plain text (a BOS, for most that have one). A text
        that begins with the BOS itself does not get a second one."""
        ids = self._backend.encode(text, add_special_tokens=add_special_tokens)
        bos = self.facts.bos_token_id
        if add_special_tokens and bos is not None and ids[:2] == [bos, bos]:
            del ids[0]
        return ids

    def encode_rendered(self, text: str, restore: Callable[[str], str] | None) -> list[int]:
        """Token ids of what a chat template has printed. Control tokens in it are the template's; those that a client
        has spelled are hidden, and `restore` puts their characters back (None: nothing is hidden)."""
        if restore is None:
            ids = self.encode(text, add_special_tokens=False)
            # A normalizer can make a control token out of other characters, and merges can: then the counts differ.
            if sum(map(self._control_ids.__contains__, ids)) == sum(1 for _ in self.control_texts.find(text)):
                return ids
        return self._two_origin_encoder.encode(text, restore or str)

    @cached_property
    def control_texts(self) -> ControlTexts:
        """What must not be encoded as a control token where a client wrote it."""
        return ControlTexts(self._control_tokens)

    @cached_property
    def _control_tokens(self) -> dict[str, int]:
        """Added tokens that are special, or a BOS, an EOS and the like that a model's files do not call so."""
        named = self.facts.template_variables.values()
        return {
            text: token_id
            for text, token_id in self._backend.literal_tokens().items()
            if token_id in self.facts.special_ids or text in named
        }

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        """All but the token that a vocabulary has for text that it cannot write: that one may come of any text."""
        unknown = self._backend.unknown_token
        return frozenset(token_id for text, token_id in self._control_tokens.items() if text != unknown)

    @cached_property
    def _two_origin_encoder(self) -> TwoOriginEncoder:
        return TwoOriginEncoder(self._backend.disguised, self.control_texts, self._control_ids)

    def token(self, token_id: int) -> str:
        """A token as the vocabulary writes it. Empty for an id that has no token."""
        return self._backend.token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for. Empty for an id that has no token: models pad their vocabulary."""
        known = self._bytes.get(token_id)
        if known is not None:
            return known
        token = self._backend.token(token_id)
        if token is None:
            data = b""
        else:
            data = token.encode() if token_id in self.facts.literal_ids else self._token_to_bytes(token)
        self._bytes[token_id] = data
        return data

    def is_special(self, token_id: int) -> bool:
        """Whether `skip_special_tokens` leaves this token out of the text."""
        return token_id in self.facts.special_ids
