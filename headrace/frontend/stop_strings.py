"""Stop strings, found in decoded text as it grows.

The text ends at the match that is complete first, reading character by character: that is where a generation of single
characters would have stopped. Of several that are complete at the same character, the one that began first counts. So
the result depends on the text alone, not on how it was cut into tokens or messages. Only what can still become a match
is held back: the longest end of the text that is the beginning of some stop string.

For each stop string the matcher keeps how much of it the text's end has (Knuth, Morris and Pratt, 1977): constant work
for each character and stop string, however long, and a few numbers of memory for each of its characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopResult(NamedTuple):
    """`text` may be given out now. `stop` is the string that ended it, None while it goes on."""

    text: str
    stop: str | None


class StopMatcher:
    """Watches one sequence for its stop strings. After a match it must not be fed again."""

    __slots__ = ("_failures", "_first_characters", "_held", "_include_stop", "_matched", "_stops")

    def __init__(self, stops: tuple[str, ...], *, include_stop: bool) -> None:
        """`stops` are not empty, and neither is any of them. `include_stop`: the match itself belongs to the text."""
        self._stops = stops
        self._include_stop = include_stop
        self._failures = [_failure_table(stop) for stop in stops]
        self._matched = [0] * len(stops)  # of each stop string, how many characters the text ends with
        self._first_characters = tuple({stop[0] for stop in stops})
        self._held = ""

    def feed(self, text: str) -> StopResult:
        """Take in new text. Returns what may be given out, and the stop string if one is complete."""
        if not self._held and not any(first in text for first in self._first_characters):
            return StopResult(text, None)
        buffer = self._held + text
        for place, character in enumerate(text, start=len(self._held) + 1):
            stop = self._advance(character)
            if stop is not None:
                self._held = ""
                return StopResult(buffer[: place if self._include_stop else place - len(stop)], stop)
        # A string that is complete would have returned, so every count is a proper beginning.
        end = len(buffer) - max(self._matched)
        self._held = buffer[end:]
        return StopResult(buffer[:end], None)

    def flush(self) -> str:
        """The sequence ended for another reason: what was held back belongs to the text after all."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        """Read one character. Returns the longest stop string that it completes."""
        complete: str | None = None
        for place, stop in enumerate(self._stops):
            matched = self._matched[place]
            while matched and stop[matched] != character:
                matched = self._failures[place][matched - 1]
            if stop[matched] == character:
                matched += 1
            self._matched[place] = matched
            if matched == len(stop) and (complete is None or len(stop) > len(complete)):
                complete = stop
        return complete


class NoStops:
    """For requests without stop strings: text passes through."""

    __slots__ = ()

    def feed(self, text: str) -> StopResult:
        return StopResult(text, None)

    def flush(self) -> str:
        return ""


def make_stop_matcher(stops: Sequence[str], *, include_stop: bool) -> StopMatcher | NoStops:
    return StopMatcher(tuple(stops), include_stop=include_stop) if stops else NoStops()


def _failure_table(pattern: str) -> list[int]:
    """For each beginning of `pattern`: the length of its longest proper end that is a beginning of it too."""
    table = [0] * len(pattern)
    length = 0
    for place in range(1, len(pattern)):
        while length and pattern[place] != pattern[length]:
            length = table[length - 1]
        if pattern[place] == pattern[length]:
            length += 1
        table[place] = length
    return table
