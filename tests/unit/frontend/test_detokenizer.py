"""Incremental decoding against decoding everything at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.frontend.detokenizer import IncrementalDetokenizer, NoDetokenizer

SPECIAL = 256


class ByteTokens:
    """A vocabulary with one token for each byte, and a special one."""

    def token_bytes(self, token_id: int) -> bytes:
        return b"<end>" if token_id == SPECIAL else bytes([token_id])

    def is_special(self, token_id: int) -> bool:
        return token_id == SPECIAL


def pieces(token_ids: list[int], *, skip_special_tokens: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(ByteTokens(), skip_special_tokens=skip_special_tokens)
    return [*map(detokenizer.append, token_ids), detokenizer.flush()]


@given(st.binary(max_size=40))
def test_the_pieces_of_any_bytes_join_to_their_decoding(data: bytes) -> None:
    assert "".join(pieces(list(data))) == data.decode(errors="replace")


@given(st.text(max_size=20))
def test_c02_no_replacement_character_unless_the_text_has_one(text: str) -> None:
    result = pieces(list(text.encode()))
    assert "".join(result) == text
    assert all("\ufffd" in text or "\ufffd" not in piece for piece in result)


def test_c03_a_character_that_is_cut_off_at_the_end_becomes_one_replacement_character():
    assert pieces(list("ab漢".encode()[:-1])) == ["a", "b", "", "", "\ufffd"]


def test_special_tokens_are_left_out_unless_asked_for():
    assert "".join(pieces([65, SPECIAL, 66])) == "AB"
    assert "".join(pieces([65, SPECIAL, 66], skip_special_tokens=False)) == "A<end>B"


def test_a_special_token_inside_a_character_does_not_break_it():
    first, *rest = "é".encode()
    assert "".join(pieces([first, SPECIAL, *rest])) == "é"


def test_without_detokenizing_there_is_no_text():
    detokenizer = NoDetokenizer()
    assert detokenizer.append(65) + detokenizer.flush() == ""
