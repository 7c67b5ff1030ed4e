"""A tokenizer that needs no files: a token's text is its number, and a few tokens are pieces of one character."""

from __future__ import annotations

from headrace.frontend.tokenizer.tokenizer import Tokenizer

PIECE_EVERY = 9  # of so many tokens, one is a single byte of a longer character
SNOWMAN = "☃".encode()  # its three bytes


class FakeTokenizer(Tokenizer):
    """What the output processor asks of a tokenizer. Some tokens end in the middle of a character, and others make no
    valid text at all."""

    def __init__(self, special_ids: frozenset[int]) -> None:
        self._special_ids = special_ids

    def token_bytes(self, token_id: int) -> bytes:
        number, rest = divmod(token_id, PIECE_EVERY)
        return SNOWMAN[number % 3 : number % 3 + 1] if rest == PIECE_EVERY - 1 else b"%d " % token_id

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids
