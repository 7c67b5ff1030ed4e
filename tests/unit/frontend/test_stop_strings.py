"""Stop strings in a growing text against a search in the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.frontend.stop_strings import StopMatcher, make_stop_matcher

LETTERS = st.text("ab", min_size=1, max_size=6)


def naive(text: str, stops: list[str], *, include_stop: bool) -> tuple[str, str | None]:
    """The match that is complete first; of those the one that began first."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include_stop else end - len(stop)], stop
    return text, None


def feed(pieces: list[str], stops: list[str], *, include_stop: bool = False) -> tuple[list[str], str | None]:
    matcher = make_stop_matcher(tuple(stops), include_stop=include_stop)
    out = []
    for piece in pieces:
        text, stop = matcher.feed(piece)
        out.append(text)
        if stop is not None:
            return out, stop
    return [*out, matcher.flush()], None


@settings(max_examples=1000)
@given(st.lists(st.text("abc", max_size=5), max_size=12), st.lists(LETTERS, max_size=4), st.booleans())
def test_any_cut_of_a_text_gives_what_a_search_in_the_whole_gives(pieces, stops, include_stop):
    out, stop = feed(pieces, stops, include_stop=include_stop)
    assert ("".join(out), stop) == naive("".join(pieces), stops, include_stop=include_stop)


@settings(max_examples=500)
@given(st.text("ab", max_size=30), st.lists(LETTERS, min_size=1, max_size=3))
def test_only_what_can_still_become_a_stop_is_held_back(text, stops):
    matcher = StopMatcher(tuple(stops), include_stop=False)
    given_out = ""
    for place, character in enumerate(text, start=1):
        released, stop = matcher.feed(character)
        given_out += released
        if stop is not None:
            return
        ends = [text[start:place] for start in range(place + 1)]
        longest = max((end for end in ends if any(s.startswith(end) for s in stops)), key=len)
        assert given_out + longest == text[:place]


def test_c05_nothing_of_the_stop_is_given_out():
    assert feed(["AB", "CDE", "F", "GHIJ"], ["DEFGHIJ"]) == (["AB", "C", "", ""], "DEFGHIJ")


def test_c07_what_was_held_back_comes_at_the_end():
    assert feed(["see", " you", "\n"], ["\n\n"]) == (["see", " you", "", "\n"], None)


@pytest.mark.parametrize("text", ["S", "STO", "STOx"])
def test_c11_a_text_that_is_a_beginning_of_the_stop_is_held_only_while_it_can_match(text):
    out, stop = feed(list(text), ["STOP"])
    assert stop is None
    assert "".join(out) == text
    assert out[-1] == ("" if text.endswith("x") else text)


def test_c09_the_stop_is_part_of_the_text_if_asked_for():
    assert feed(["one tw", "o three"], ["two"], include_stop=True) == (["one ", "two"], "two")


def test_a_stop_inside_a_token_ends_the_text_there():
    assert feed(["Hello, world"], [", "]) == (["Hello"], ", ")


def test_the_stop_that_is_complete_first_wins_and_of_those_the_longest():
    assert feed(["abcd"], ["abcd", "bc"]) == (["a"], "bc")
    assert feed(["xabc"], ["bc", "abc"]) == (["x"], "abc")
