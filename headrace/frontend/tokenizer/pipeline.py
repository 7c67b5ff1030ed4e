"""Encoding by the `tokenizers` library: byte-level BPE, and whatever a tokenizer.json describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers


class Pipeline:
    """A `TokenizerBackend`."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, prefix: Sequence[int] = ()) -> None:
        """`prefix`: what `add_special_tokens` puts before a text, beside what the tokenizer itself does."""
        self._tokenizer = tokenizer
        self._prefix = list(prefix)
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self.unknown_token: str | None = getattr(tokenizer.model, "unk_token", None)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # A batch of one: the library's plain `encode` holds the GIL all the while (0.3 s for 650 kB), this lets it go.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return self._prefix + ids if add_special_tokens else ids

    def token(self, token_id: int) -> str | None:
        token: str | None = self._tokenizer.id_to_token(token_id)
        return token

    def literal_tokens(self) -> Mapping[str, int]:
        return {token.content: token_id for token_id, token in self._tokenizer.get_added_tokens_decoder().items()}

    def disguised(self, disguises: Mapping[str, str], control_ids: frozenset[int]) -> Callable[[str], list[int]]:
        return _DisguisedPipeline(self._tokenizer, disguises, control_ids).encode


class _DisguisedPipeline:
    """See `TokenizerBackend.disguised`. Shares the vocabulary of the tokenizer that it is made from."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, disguises: Mapping[str, str], control_ids: frozenset[int]
    ) -> None:
        from tokenizers import AddedToken
        from tokenizers import Tokenizer as Backend

        self._control_ids = control_ids
        self._tokenizer = Backend(tokenizer.model)
        if tokenizer.normalizer is not None:
            self._tokenizer.normalizer = tokenizer.normalizer
        if tokenizer.pre_tokenizer is not None:
            self._tokenizer.pre_tokenizer = tokenizer.pre_tokenizer
        added = sorted(tokenizer.get_added_tokens_decoder().items())
        stand_ins = [
            AddedToken(
                disguises.get(token.content, token.content),
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
            )
            for _, token in added
        ]
        self._tokenizer.add_tokens(stand_ins)
        # Tokens that the model's vocabulary lacks, as it does the disguises, have other ids here than there.
        self._true_ids = {
            self._tokenizer.token_to_id(stand_in.content): token_id
            for (token_id, _), stand_in in zip(added, stand_ins, strict=True)
        }

    def encode(self, text: str) -> list[int]:
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = []
        for its_id in encoding.ids:
            if its_id in self._true_ids:
                ids.append(self._true_ids[its_id])
            elif its_id in self._control_ids:
                ids += self._in_parts(its_id)
            else:
                ids.append(its_id)
        return ids

    def _in_parts(self, control_id: int) -> list[int]:
        """Where a vocabulary has merges that end in a control token, its text is two tokens or more."""
        token = self._tokenizer.id_to_token(control_id) or ""
        return [piece.id for part in (token[:1], token[1:]) if part for piece in self._tokenizer.model.tokenize(part)]
