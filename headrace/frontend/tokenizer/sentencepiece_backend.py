"""Encoding by the `sentencepiece` library, with the tokens that are written as they are cut out of the text first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ModelFormatError

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor


def load_processor(path: Path, model: bytes) -> SentencePieceProcessor:
    """`model` is a ModelProto that came out of `path`. Raises `ModelFormatError`."""
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except Exception as error:  # the library does not say what it raises
        raise ModelFormatError(f"{path}: its SentencePiece vocabulary is of no use: {error}") from None
    return processor


class SentencePieceBackend:
    """A `TokenizerBackend`."""

    def __init__(
        self, processor: SentencePieceProcessor, literals: Mapping[str, int], prefix: Sequence[int] = ()
    ) -> None:
        """`literals`: tokens that are found in text as they are, before SentencePiece sees what lies between them; ids
        beyond the model's own pieces are allowed. `prefix`: what `add_special_tokens` puts before a text."""
        self._processor = processor
        self._num_pieces: int = processor.get_piece_size()
        self._literals = LiteralTokens(literals)
        self._literal_texts = {token_id: text for text, token_id in literals.items()}
        self._prefix = list(prefix)
        self.vocab_size = max(self._num_pieces, max(self._literal_texts, default=-1) + 1)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids = self._prefix.copy() if add_special_tokens else []
        for part in self._literals.split(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._processor.encode(part)
        return ids

    def token(self, token_id: int) -> str | None:
        if token_id in self._literal_texts:
            return self._literal_texts[token_id]
        if not 0 <= token_id < self._num_pieces:
            return None
        piece: str = self._processor.id_to_piece(token_id)
        return piece


class LiteralTokens:
    """Finds the tokens of a set in a text: the leftmost first, and of those that begin there the longest."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(lengths_of, reverse=True) for first, lengths_of in lengths.items()}
        # Only where two characters fit is a longer look worth while. Gemma's 6,400 tokens begin in some 15 ways.
        starts = sorted({text[:2] for text in ids}, key=len, reverse=True)
        self._start = re.compile("|".join(map(re.escape, starts))) if starts else None

    def split(self, text: str) -> Iterator[str | int]:
        """The ids of the tokens found and, as they are, the texts between them."""
        begin = place = 0
        while self._start is not None and (match := self._start.search(text, place)):
            place = match.start()
            for length in self._lengths[text[place]]:
                token_id = self._ids.get(text[place : place + length])
                if token_id is not None:
                    if begin < place:
                        yield text[begin:place]
                    yield token_id
                    begin = place = place + length
                    break
            else:
                place += 1
        if begin < len(text):
            yield text[begin:]
