"""Encoding by the `tokenizers` library: byte-level BPE, and whatever a tokenizer.json describes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers


class Pipeline:
    """A `TokenizerBackend`."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, prefix: Sequence[int] = ()) -> None:
        """`prefix`: what `add_special_tokens` puts before a text, beside what the tokenizer itself does."""
        self._tokenizer = tokenizer
        self._prefix = list(prefix)
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # A batch of one: the library's plain `encode` holds the GIL all the while (0.3 s for 650 kB), this lets it go.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return self._prefix + ids if add_special_tokens else ids

    def token(self, token_id: int) -> str | None:
        token: str | None = self._tokenizer.id_to_token(token_id)
        return token
