"""What clients write in a chat can spell control tokens, and must never become them.

Before a template sees the messages, each character of such a spelling is replaced by a character of Unicode's plane 16
(private use) that the request itself does not contain: one for one, so that lengths, slices and trimming in a template
work as always. Characters of the request that look the same are thereby told apart. After rendering, whatever spells a
control token is the template's own, and the hidden characters are put back where the prompt is encoded
(tokenizer/control_tokens.py). Messages that spell nothing are left alone.

Hidden is also what could be completed by what stands beside it: the beginning of a control token at the end of a text,
the end of one at its start, and a message's text that as a whole is the inside of one.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from headrace.errors import InvalidParameterError
from headrace.frontend.chat_messages import Message
from headrace.frontend.tokenizer.control_tokens import ControlTexts

_PLANE_16 = range(0x100000, 0x10FFFE)
_HIDDEN = re.compile("[\U00100000-\U0010fffd]+")


class HiddenCharacters:
    """The characters of one request that are hidden, and what stands for them."""

    def __init__(self, alphabet: str, used: set[str]) -> None:
        """Raises `InvalidParameterError` if `used` leaves no characters to choose from."""
        start = secrets.randbelow(len(_PLANE_16))  # so that no template can expect them
        candidates = (chr(_PLANE_16[(start + i) % len(_PLANE_16)]) for i in range(len(_PLANE_16)))
        chosen = list(itertools.islice((c for c in candidates if c not in used), len(alphabet)))
        if len(chosen) < len(alphabet):
            raise InvalidParameterError("The messages use too many private-use characters.", param="messages")
        self._hide = {ord(shown): hidden for shown, hidden in zip(alphabet, chosen, strict=True)}
        self._restore = {ord(hidden): shown for shown, hidden in zip(alphabet, chosen, strict=True)}

    def hide(self, text: str) -> str:
        return text.translate(self._hide)

    def restore(self, text: str) -> str:
        return _HIDDEN.sub(lambda match: match[0].translate(self._restore), text)


class ContentGuard:
    """For one model: hides what clients must not say."""

    def __init__(self, control_texts: ControlTexts) -> None:
        texts = control_texts.texts
        self._control_texts = control_texts
        self._all_texts = "\0".join(texts)  # a search in one text is much quicker than in thousands
        self._alphabet = "".join(sorted(set("".join(texts))))
        self._beginnings = {text[:place] for text in texts for place in range(1, len(text))}
        self._ends = {text[place:] for text in texts for place in range(1, len(text))}

    def hide(
        self, messages: list[Message], variables: Mapping[str, Any]
    ) -> tuple[list[Message], Mapping[str, Any], HiddenCharacters | None]:
        """A client's messages and template variables as a template may have them. Roles are words of ours.

        Raises `InvalidParameterError` for a request that uses all of the plane."""
        said = [value for message in messages for key, value in message.items() if key != "role"]
        set_values = list(variables.values())
        if not any(map(self._spells, _texts(said))) and not any(map(self._spells_outright, _texts(set_values))):
            return messages, variables, None
        used = {c for text in _texts([said, set_values]) for found in _HIDDEN.findall(text) for c in found}
        hidden = HiddenCharacters(self._alphabet, used)

        def hide_said(text: str) -> str:
            return _replace(text, self._spans(text), hidden.hide)

        def hide_outright(text: str) -> str:
            return _replace(text, self._outright_spans(text), hidden.hide)

        hidden_messages = [
            {key: value if key == "role" else _map(value, hide_said) for key, value in message.items()}
            for message in messages
        ]
        # Templates compare variables with words, so these are not hidden for being the inside of a control token.
        hidden_variables = {key: _map(value, hide_outright) for key, value in variables.items()}
        return hidden_messages, hidden_variables, hidden

    def _spells(self, text: str) -> bool:
        return any(self._spans(text))

    def _spells_outright(self, text: str) -> bool:
        return any(self._outright_spans(text))

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where a text must be hidden: first and last place, in no order, perhaps overlapping."""
        yield from self._outright_spans(text)
        for start, end in _outlines(text):
            if 0 < end - start < self._control_texts.max_length and text[start:end] in self._all_texts:
                yield start, end

    def _outright_spans(self, text: str) -> Iterator[tuple[int, int]]:
        for match in self._control_texts.find(text):
            yield match.span()
        for start, end in _outlines(text):
            longest = min(self._control_texts.max_length - 1, end - start)
            for length in range(1, longest + 1):
                if text[end - length : end] in self._beginnings:
                    yield end - length, end
                if text[start : start + length] in self._ends:
                    yield start, start + length


def _outlines(text: str) -> set[tuple[int, int]]:
    """The whole text, and what is left of it when a template trims it."""
    return {(0, len(text)), (len(text) - len(text.lstrip()), len(text.rstrip()))}


def _replace(text: str, spans: Iterable[tuple[int, int]], hide: Callable[[str], str]) -> str:
    pieces: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if end > done:
            begin = max(start, done)
            pieces += (text[done:begin], hide(text[begin:end]))
            done = end
    return "".join(pieces) + text[done:]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield key
            yield from _texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)


def _map(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _map(entry, change) for key, entry in value.items()}
    if isinstance(value, list):
        return [_map(entry, change) for entry in value]
    return value
