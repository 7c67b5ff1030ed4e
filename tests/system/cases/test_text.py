"""From tokens to text: characters in pieces, stop strings, special tokens."""

from __future__ import annotations

import pytest

from tests.system.cases.client import CHAT, COMPLETIONS, ROUTES, Answer, ask, forcing, token_ids
from tests.system.server import Server

pytestmark = pytest.mark.system

HARD = "ď🔥漢"  # eight tokens, none of which is a character
LETTERS = "ABCDEFGHIJ"  # ABC, DEF, GH, I, J
END_OF_TEXT, IM_END = (0, "<|endoftext|>"), (2, "<|im_end|>")  # the other one is in every chat's prompt


def say(server: Server, path: str, stream: bool, text: str, **more: object) -> Answer:
    """An answer whose tokens are those of a text."""
    return ask(server, path, stream, **forcing(token_ids(server, text)) | more)


@pytest.mark.parametrize("path", ROUTES)
def test_c02_no_piece_of_a_character(server: Server, stream: bool, path: str) -> None:
    answer = say(server, path, stream, HARD)
    assert answer.text == HARD
    assert not any("\ufffd" in piece for piece in answer.pieces[0])


@pytest.mark.parametrize("path", ROUTES)
def test_c03_cut_in_a_character(server: Server, stream: bool, path: str) -> None:
    """What was begun and is not finished is one U+FFFD, at the end."""
    expected = {1: "\ufffd", 2: "ď", 3: "ď\ufffd", 4: "ď\ufffd", 5: "ď🔥", 6: "ď🔥\ufffd", 7: "ď🔥\ufffd", 8: HARD}
    for max_tokens, text in expected.items():
        answer = say(server, path, stream, HARD, max_tokens=max_tokens)
        assert answer.text == text
        assert answer.reasons == {0: "length"}


@pytest.mark.parametrize("path", ROUTES)
def test_c04_bytes_of_logprobs_join_to_the_text(server: Server, stream: bool, path: str) -> None:
    if path == CHAT:
        answer = say(server, path, stream, HARD, logprobs=True, top_logprobs=1)
        entries = [entry for piece in answer.logprobs[0] for entry in piece["content"]]
        assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == HARD
        assert all(top["bytes"] for entry in entries for top in entry["top_logprobs"])
    else:
        answer = say(server, path, stream, HARD, logprobs=1)
        assert [offset for piece in answer.logprobs[0] for offset in piece["text_offset"]] == [0, 0, 1, 1, 1, 2, 2, 2]
    assert answer.text == HARD


@pytest.mark.parametrize("path", ROUTES)
def test_c05_no_letter_of_a_stop_string(server: Server, stream: bool, path: str) -> None:
    answer = say(server, path, stream, LETTERS, stop=["DEFGHIJ"])
    assert "".join(answer.pieces[0]) == "ABC"
    assert answer.reasons == {0: "stop"}
    inside = say(server, path, stream, LETTERS, stop=["BCDE", "EF"])
    assert inside.text == "A"


@pytest.mark.parametrize("path", ROUTES)
def test_c07_what_was_held_back_in_vain_is_delivered(server: Server, stream: bool, path: str) -> None:
    for stop in (["\n"], ["IJK"], ["GHIJKL", "J\n"], ["DEFX", "HIX"]):
        answer = say(server, path, stream, LETTERS, stop=stop)
        assert (answer.text, answer.reasons) == (LETTERS, {0: "length"})


@pytest.mark.parametrize("path", ROUTES)
def test_c09_the_stop_is_shown_if_it_was_asked_for(server: Server, stream: bool, path: str) -> None:
    for shown, text in ((True, "ABCDEF"), (False, "ABCD")):
        answer = say(server, path, stream, LETTERS, stop=["EF"], include_stop_str_in_output=shown)
        assert (answer.text, answer.reasons) == (text, {0: "stop"})


@pytest.mark.parametrize("path", ROUTES)
def test_c11_all_of_the_answer_begins_the_stop(server: Server, stream: bool, path: str) -> None:
    for stop, text, reason in (
        (LETTERS, "", "stop"),
        (LETTERS + "K", LETTERS, "length"),
        (LETTERS[:-1], "", "stop"),
        (LETTERS[1:], "A", "stop"),
        ("ABCX", LETTERS, "length"),
    ):
        answer = say(server, path, stream, LETTERS, stop=[stop])
        assert (answer.text, answer.reasons) == (text, {0: reason})


@pytest.mark.parametrize("path", ROUTES)
def test_c12_a_special_token_ends_the_answer_and_cuts_nothing_else(server: Server, stream: bool, path: str) -> None:
    special, spelled = END_OF_TEXT if path == CHAT else IM_END
    first, second, *others = token_ids(server, LETTERS)
    forced = forcing([first, second, special, *others])
    endings = [{"stop_token_ids": [special]}, *([{"ignore_eos": False}] if path == COMPLETIONS else [])]
    for skip in (True, False):
        for ending in endings:
            answer = ask(server, path, stream, **forced | ending, skip_special_tokens=skip)
            assert (answer.text, answer.reasons) == ("ABCDEF", {0: "stop"})
    passed = ask(server, path, stream, **forced, skip_special_tokens=True)
    assert (passed.text, passed.reasons) == (LETTERS, {0: "length"})
    shown = ask(server, path, stream, **forced, skip_special_tokens=False)
    assert shown.text == f"ABCDEF{spelled}GHIJ"
    as_text = ask(server, path, stream, **forced, skip_special_tokens=False, stop=[spelled])
    assert (as_text.text, as_text.reasons) == ("ABCDEF", {0: "stop"})


@pytest.mark.parametrize("text", [HARD, LETTERS])
def test_forcing_forces(server: Server, text: str) -> None:
    """The trick that the cases stand on."""
    assert len(set(token_ids(server, text))) == len(token_ids(server, text))
    assert say(server, COMPLETIONS, False, text).text == text
