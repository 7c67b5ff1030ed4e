"""Control tokens in a text: where their texts stand, and how to encode a text in which some of them are only spelled.

A chat prompt is text of two origins. What the template prints becomes control tokens; what a client wrote must not,
whatever it spells. So the prompt comes here with the characters of the client's spellings hidden (chat_content.py). The
template's own control tokens are swapped for disguises, which nobody outside this process knows; then the hidden
characters are put back, and the whole is encoded at once by a second tokenizer that knows the disguises in the control
tokens' place. So each run of text between two control tokens is cut into words and merged as always, the spellings in
it included, and tokens that take the spaces beside them do so. The second tokenizer shares the first one's vocabulary.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_WINDOW = 2**18  # characters that are searched in one go: other threads get their turn in between
_NONCE_LENGTH = 10  # 10 of 6,400 characters are 126 bits
_PRIVATE_USE = range(0xE000, 0xF900)  # Unicode's private use area of the basic plane


Disguise = Callable[[Mapping[str, str], frozenset[int]], Callable[[str], list[int]]]


class ControlTexts:
    """Finds the texts of control tokens, in time that is linear in the length of what is searched."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(sorted({text for text in texts if text}))
        self.max_length = max(map(len, self.texts), default=0)
        self._pattern = re.compile(_longest_of(self.texts) if self.texts else "(?!)")

    def find(self, text: str) -> Iterator[re.Match[str]]:
        """From left to right, the longest at each place, as the library does it."""
        start = 0
        while start < len(text):
            limit = start + _WINDOW
            match = self._pattern.search(text, start, limit + self.max_length)
            if match is None or match.start() >= limit:
                start = limit
            else:
                yield match
                start = match.end()


def _longest_of(texts: Sequence[str]) -> str:
    """A regular expression for the longest of these sorted texts that is there. It is a tree: a character decides a
    branch, so thousands of texts take no longer than one."""
    by_first: dict[str, list[str]] = {}
    for text in texts:
        if text:
            by_first.setdefault(text[0], []).append(text)
    branches = []
    for members in by_first.values():
        first, last = members[0], members[-1]  # what these share in a sorted list, all do
        shared = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
        branches.append(re.escape(first[:shared]) + _longest_of([member[shared:] for member in members]))
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + ("" if all(texts) else "?")


def private_nonce() -> str:
    """A text that nobody can guess and no template knows."""
    return "".join(chr(secrets.choice(_PRIVATE_USE)) for _ in range(_NONCE_LENGTH))


class TwoOriginEncoder:
    """Encodes texts in which control tokens are real and others are only spelled."""

    def __init__(self, disguise: Disguise, control_texts: ControlTexts, control_ids: frozenset[int]) -> None:
        """`disguise` is `TokenizerBackend.disguised`; `control_ids`: what a run of text must never be merged into."""
        self._control_texts = control_texts
        nonce = private_nonce()
        self._disguises = {
            text: nonce + "".join(chr(_PRIVATE_USE[digit]) for digit in divmod(place, len(_PRIVATE_USE)))
            for place, text in enumerate(control_texts.texts)
        }
        self._encode = disguise(self._disguises, control_ids)

    def encode(self, text: str, restore: Callable[[str], str]) -> list[int]:
        """`restore` puts the hidden characters of a text back."""
        pieces: list[str] = []
        end = 0
        for match in self._control_texts.find(text):
            pieces += (text[end : match.start()], self._disguises[match[0]])
            end = match.end()
        pieces.append(text[end:])
        return self._encode(restore("".join(pieces)))
