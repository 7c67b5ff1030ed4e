"""What clients read of logprobs: token ids as text and bytes, and where in the text a token begins."""

from __future__ import annotations

import codecs

import msgspec

from headrace.contracts.model_runner import TokenLogprobs
from headrace.frontend.detokenizer import TokenBytes
from headrace.frontend.request_output import CompletionOutput

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
    offset: int  # characters of the answer before this token


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
        return [self._place(text, *pair) for pair in zip(output.token_ids, output.logprobs, strict=True)]

    def _place(self, text: _TextLength, token_id: int, found: TokenLogprobs) -> PlaceLogprobs:
        place = PlaceLogprobs(
            sampled=self._token(token_id, found.logprob),
            top=[self._token(top_id, logprob) for top_id, logprob in found.top],
            offset=text.length,
        )
        if not (self._skip_special_tokens and self._tokenizer.is_special(token_id)):
            text.append(place.sampled.data)
        return place

    def _token(self, token_id: int, logprob: float) -> TokenText:
        data = self._tokenizer.token_bytes(token_id)
        text = f"token_id:{token_id}" if self._with_ids else data.decode(errors="replace")
        return TokenText(text, data, max(logprob, LOWEST))


class _TextLength:
    """How many characters some bytes make, as far as they have come."""

    def __init__(self) -> None:
        self.length = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def append(self, data: bytes) -> None:
        self.length += len(self._decoder.decode(data))
