"""Encoding by the `sentencepiece` library, with the tokens that are written as they are cut out of the text first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
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
        self,
        processor: SentencePieceProcessor,
        literals: Mapping[str, int],
        prefix: Sequence[int] = (),
        *,
        spelled_out: frozenset[int] = frozenset(),
    ) -> None:
        """`literals`: tokens that are found in text as they are, before SentencePiece sees what lies between them; ids
        beyond the model's own pieces are allowed. `prefix`: what `add_special_tokens` puts before a text.
        `spelled_out`: pieces that text must not become."""
        self._processor = processor
        self._num_pieces: int = processor.get_piece_size()
        self._literals = LiteralTokens(literals)
        self._literal_texts = {token_id: text for text, token_id in literals.items()}
        self._prefix = list(prefix)
        self._spelled_out = spelled_out
        self.vocab_size = max(self._num_pieces, max(self._literal_texts, default=-1) + 1)
        self.unknown_token = self.token(processor.unk_id())

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids = self._prefix.copy() if add_special_tokens else []
        for part in self._literals.split(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encode_text(part)
        return ids

    def _encode_text(self, text: str) -> list[int]:
        ids: list[int] = self._processor.encode(text)
        if self._spelled_out.isdisjoint(ids):
            return ids
        return [part_id for i in ids for part_id in (self._spell_out(i) if i in self._spelled_out else [i])]

    def token(self, token_id: int) -> str | None:
        if token_id in self._literal_texts:
            return self._literal_texts[token_id]
        if not 0 <= token_id < self._num_pieces:
            return None
        piece: str = self._processor.id_to_piece(token_id)
        return piece

    def literal_tokens(self) -> Mapping[str, int]:
        return {text: token_id for token_id, text in self._literal_texts.items()}

    def disguised(self, disguises: Mapping[str, str], control_ids: frozenset[int]) -> Callable[[str], list[int]]:
        """Of most vocabularies no piece that is a control token comes of text. Those that a model's files call special
        later can, and are written character by character then."""
        literals = {disguises.get(text, text): token_id for text, token_id in self.literal_tokens().items()}
        spelled_out = frozenset(i for i in control_ids if i < self._num_pieces and not self._processor.is_control(i))
        backend = SentencePieceBackend(self._processor, literals, spelled_out=spelled_out)
        return partial(backend.encode, add_special_tokens=False)

    def _spell_out(self, token_id: int) -> list[int]:
        ids: list[int] = []
        for character in self._processor.id_to_piece(token_id):
            character_id = self._processor.piece_to_id(character)
            if character_id == self._processor.unk_id():
                ids += [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in character.encode()]
            else:
                ids.append(character_id)
        return ids


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
