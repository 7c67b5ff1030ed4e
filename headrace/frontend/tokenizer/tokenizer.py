"""`Tokenizer`: one model's text-to-ids and id-to-bytes. Safe to use from several threads; encoding releases the GIL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

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

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Special tokens written out in the text become those tokens; `add_special_tokens` adds what the model expects
        around a plain text, whatever the text begins with."""

    def token(self, token_id: int) -> str | None:
        """A token as the vocabulary has it; None for an id that has none."""


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
