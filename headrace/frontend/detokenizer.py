"""Token ids to text, one token at a time, without ever cutting a character in two.

Works on bytes: a token may end in the middle of a UTF-8 character, and its bytes wait here for the rest. U+FFFD stands
only for bytes that no continuation could make valid, one for each maximal invalid part, as Python's errors="replace"
puts it; so the pieces always join to the decoding of all bytes at once. A generation that ends in the middle of a
character ends with one U+FFFD, given out by `flush`: nothing that was generated vanishes without a trace.
"""

from __future__ import annotations

import codecs
from typing import Protocol

_UTF8 = codecs.getincrementaldecoder("utf-8")


class TokenBytes(Protocol):
    """What a detokenizer needs of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class IncrementalDetokenizer:
    """The text of one sequence."""

    __slots__ = ("_decoder", "_skip_special_tokens", "_tokenizer")

    def __init__(self, tokenizer: TokenBytes, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = _UTF8(errors="replace")

    def append(self, token_id: int) -> str:
        """The text that this token completes; empty where it ends inside a character or is left out as special."""
        if self._skip_special_tokens and self._tokenizer.is_special(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """The end: U+FFFD for a character that was begun and not finished, else nothing."""
        return self._decoder.decode(b"", True)


class NoDetokenizer:
    """For `detokenize=False`: there is no text."""

    __slots__ = ()

    def append(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


Detokenizer = IncrementalDetokenizer | NoDetokenizer
