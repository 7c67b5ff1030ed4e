"""What clients read of logprobs: token ids as text and bytes, and where in the text a token begins.

Of a prompt there may be hundreds of thousands: what reads them is for a thread, not for the event loop.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import msgspec

from headrace.contracts.model_runner import TokenLogprobs
from headrace.frontend.detokenizer import TokenBytes
from headrace.frontend.request_output import CompletionOutput

_UTF8 = codecs.getincrementaldecoder("utf-8")

LOWEST = -9999.0  # stands for minus infinity, which JSON does not have; OpenAI's number


class TokenText(msgspec.Struct):
    """One token and its logprob. `text` has U+FFFD for bytes that are no text on their own; `data` is exact."""

    text: str
    data: bytes
    logprob: float


class PlaceLogprobs(msgspec.Struct):
    """What there is to say of one place of an answer."""

    sampled: TokenText
    top: list[TokenText]  # the most probable first
    offset: int  # characters of the text before this token


class RankedToken(msgspec.Struct):
    """One token at a place of a prompt, in vLLM's words."""

    logprob: float
    rank: int  # how many tokens are at least as probable, itself included
    decoded_token: str


class LogprobsReader:
    """Of the choices of one answer, by the index that the client sees. Each choice's tokens come in their order."""

    def __init__(self, tokenizer: TokenBytes, *, skip_special_tokens: bool, with_ids: bool) -> None:
        """`with_ids`: a token's text is `token_id:` and its number. `skip_special_tokens`: as of the answer's text."""
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._with_ids = with_ids
        self._texts: dict[int, _TextLength] = {}

    def read(self, index: int, output: CompletionOutput) -> list[PlaceLogprobs] | None:
        """Of the tokens of this output of a choice. None where the request wants no logprobs."""
        if output.logprobs is None:
            return None
        text = self._texts.setdefault(index, _TextLength())
        return [self._answer_place(text, *pair) for pair in zip(output.token_ids, output.logprobs, strict=True)]

    def read_prompt(
        self, text: str, token_ids: Sequence[int], found: Sequence[TokenLogprobs | None], num_top: int
    ) -> list[PlaceLogprobs]:
        """Of a prompt, whose text is known. The first token has no logprob: `LOWEST` stands for it."""
        length = _TextLength()
        places = []
        for token_id, known in zip(token_ids, found, strict=True):
            place = self._place(length, token_id, known or TokenLogprobs(LOWEST, 1), num_top)
            data = place.sampled.data
            if not length.length and not text.startswith(" "):
                data = data.removeprefix(b" ")  # SentencePiece begins a text with a space that nobody wrote
            # A special token is part of the text where the caller spelled it out.
            if not self._tokenizer.is_special(token_id) or text.startswith(data.decode(errors="replace"), place.offset):
                length.append(data)
            places.append(place)
        return places

    def text_of(self, token_ids: Sequence[int]) -> str:
        """As the text of an answer with these tokens would be."""
        skips = self._skip_special_tokens
        kept = (token_id for token_id in token_ids if not (skips and self._tokenizer.is_special(token_id)))
        return b"".join(map(self._tokenizer.token_bytes, kept)).decode(errors="replace")

    def begin_after(self, index: int, text: str) -> None:
        """The text of a choice begins with this one, which is not made of its tokens."""
        self._texts[index] = _TextLength(len(text))

    def prompt_by_id(
        self, token_ids: Sequence[int], found: Sequence[TokenLogprobs | None], num_top: int
    ) -> list[dict[int, RankedToken] | None]:
        """Of a prompt, for each token: it and the most probable ones at its place. None for the first."""
        return [
            None if known is None else self._ranked(token_id, known, num_top)
            for token_id, known in zip(token_ids, found, strict=True)
        ]

    def _ranked(self, token_id: int, known: TokenLogprobs, num_top: int) -> dict[int, RankedToken]:
        ranked = {
            top_id: RankedToken(max(logprob, LOWEST), rank, self._text(top_id))
            for rank, (top_id, logprob) in enumerate(known.top[:num_top], 1)
        }
        ranked.setdefault(token_id, RankedToken(max(known.logprob, LOWEST), known.rank, self._text(token_id)))
        return ranked

    def _place(
        self, text: _TextLength, token_id: int, found: TokenLogprobs, num_top: int | None = None
    ) -> PlaceLogprobs:
        return PlaceLogprobs(
            sampled=self._token(token_id, found.logprob),
            top=[self._token(top_id, logprob) for top_id, logprob in found.top[:num_top]],
            offset=text.place_of(self._tokenizer.token_bytes(token_id)),
        )

    def _answer_place(self, text: _TextLength, token_id: int, found: TokenLogprobs) -> PlaceLogprobs:
        place = self._place(text, token_id, found)
        if not (self._skip_special_tokens and self._tokenizer.is_special(token_id)):
            text.append(place.sampled.data)
        return place

    def _token(self, token_id: int, logprob: float) -> TokenText:
        return TokenText(self._text(token_id), self._tokenizer.token_bytes(token_id), max(logprob, LOWEST))

    def _text(self, token_id: int) -> str:
        return (
            f"token_id:{token_id}" if self._with_ids else self._tokenizer.token_bytes(token_id).decode(errors="replace")
        )


class _TextLength:
    """How many characters some bytes make, as far as they have come."""

    def __init__(self, length: int = 0) -> None:
        self.length = length
        self._decoder = _UTF8(errors="replace")

    def place_of(self, data: bytes) -> int:
        """Where these bytes begin, if they come next: behind a character that was begun and that they do not go on
        with, which becomes U+FFFD."""
        begun, _ = self._decoder.getstate()
        next_ones = begun + data[:1]
        is_broken = bool(begun) and _UTF8(errors="replace").decode(next_ones).startswith("\ufffd")
        return self.length + (is_broken and next_ones != "\ufffd".encode())

    def append(self, data: bytes) -> None:
        self.length += len(self._decoder.decode(data))
