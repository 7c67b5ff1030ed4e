"""A tokenizer out of a GGUF file's metadata (ggml/docs/gguf.md, "Tokenizer"), for the kinds in `_KINDS`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headrace.errors import ModelFormatError, UnsupportedModelError
from headrace.formats.gguf import GGUFMetadata, read_gguf
from headrace.frontend.tokenizer.byte_alphabet import TokenToBytes, byte_level_bytes, sentencepiece_bytes
from headrace.frontend.tokenizer.pipeline import Pipeline
from headrace.frontend.tokenizer.pre_tokenizers import PreTokenizer, find_pre_tokenizer, install_pre_tokenizer
from headrace.frontend.tokenizer.sentencepiece_backend import SentencePieceBackend, load_processor
from headrace.frontend.tokenizer.sentencepiece_model import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    write_bpe_model,
)
from headrace.frontend.tokenizer.tokenizer import Tokenizer, TokenizerBackend, TokenizerFacts
from headrace.frontend.tokenizer.vocabulary_cache import Vocabulary, cached_vocabulary, content_key

if TYPE_CHECKING:
    import tokenizers

_SPECIAL = frozenset({UNKNOWN, CONTROL})  # values of tokenizer.ggml.token_type
_LITERAL = frozenset({UNKNOWN, CONTROL, USER_DEFINED})
_TEMPLATE_VARIABLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_SENTENCEPIECE_IDS = {"bos": 1, "eos": 2, "unknown": 0}  # what holds for "llama" where the file does not say

T = TypeVar("T")


def tokenizer_from_gguf(path: Path) -> Tokenizer:
    """Raises `ModelFormatError` or `UnsupportedModelError`.

    SmolLM2 (49,152 tokens) takes some 0.2 s. SentencePiece vocabularies are cached: Gemma 3 (262,144) takes 1 s the
    first time and 0.2 s from then on."""
    file = _File(path)
    kind = file.metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in _KINDS:
        supported = ", ".join(map(repr, _KINDS))
        raise UnsupportedModelError(f"{path}: its tokenizer is of the kind {kind!r}; supported are: {supported}")
    return _KINDS[kind](file)


class _File:
    """The metadata, with values checked as they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: GGUFMetadata = read_gguf(path).metadata

    def value(self, name: str, kind: type[T], default: T | None = None) -> T:
        key = f"tokenizer.{name}"
        value = self.metadata.get(key, default)
        if not isinstance(value, kind):
            raise self.error(f"the metadata key {key!r} is missing or no {kind.__name__}")
        return value

    def tokens(self) -> list[str]:
        tokens: list[str] = self.value("ggml.tokens", list)
        if not tokens or not isinstance(tokens[0], str):
            raise self.error("its vocabulary has no texts")
        if "" in tokens:  # libraries refuse it; llama.cpp gives it a name
            tokens = [token or f"[EMPTY_{token_id}]" for token_id, token in enumerate(tokens)]
        return tokens

    def token_types(self) -> list[int]:
        return self.value("ggml.token_type", list, [])

    def token_id(self, name: str, vocab_size: int, default: int | None = None) -> int | None:
        """As llama.cpp has it, an id that is no token's counts as none."""
        for token_id in (self.metadata.get(f"tokenizer.ggml.{name}_token_id"), default):
            if isinstance(token_id, int) and 0 <= token_id < vocab_size:
                return token_id
        return None

    def prefix(self, bos: int | None, *, adds_bos: bool) -> list[int]:
        """What comes before a plain text. `adds_bos` holds where the file does not say."""
        return [bos] if bos is not None and self.value("ggml.add_bos_token", bool, adds_bos) else []

    def facts(
        self,
        backend: TokenizerBackend,
        *,
        special_ids: frozenset[int],
        literal_ids: frozenset[int],
        max_token_length: int,
        default_ids: dict[str, int],
    ) -> TokenizerFacts:
        ids = {name: self.token_id(name, backend.vocab_size, default_ids.get(name)) for name in _TEMPLATE_VARIABLES}
        return TokenizerFacts(
            special_ids=special_ids,
            literal_ids=literal_ids,
            max_token_length=max_token_length,
            bos_token_id=ids["bos"],
            template_variables={
                variable: text
                for name, variable in _TEMPLATE_VARIABLES.items()
                if (token_id := ids[name]) is not None and (text := backend.token(token_id)) is not None
            },
            chat_template=self.value("chat_template", str, "") or None,
        )

    def error(self, reason: str) -> ModelFormatError:
        return ModelFormatError(f"{self.path}: {reason}")


# ---- BPE by a list of merges


def _byte_level_bpe(file: _File) -> Tokenizer:
    return _bpe(file, find_pre_tokenizer(file.value("ggml.pre", str, "default")))


def _gemma4_bpe(file: _File) -> Tokenizer:
    return _bpe(file, find_pre_tokenizer("gemma4"))


def _bpe(file: _File, spec: PreTokenizer) -> Tokenizer:
    tokens, token_types = file.tokens(), file.token_types()
    literal = frozenset(i for i, token_type in enumerate(token_types[: len(tokens)]) if token_type in _LITERAL)
    special = frozenset(i for i in literal if token_types[i] in _SPECIAL)
    if spec.newlines_whole:
        literal = literal.union(i for i, token in enumerate(tokens) if not token.strip("\n"))
    library = _bpe_model(file, spec, tokens, file.value("ggml.merges", list))
    _add_literal_tokens(library, tokens, special, literal)
    backend = Pipeline(library, file.prefix(file.token_id("bos", len(tokens)), adds_bos=spec.adds_bos))
    facts = file.facts(
        backend,
        special_ids=special,
        literal_ids=literal,
        max_token_length=max(map(len, tokens)),
        default_ids={},
    )
    alphabet: TokenToBytes = byte_level_bytes if spec.byte_level else sentencepiece_bytes
    return Tokenizer(backend, alphabet, facts)


def _bpe_model(file: _File, spec: PreTokenizer, tokens: list[str], merges: list[str]) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Library
    from tokenizers import models

    try:
        bpe = models.BPE(
            vocab=dict(zip(tokens, range(len(tokens)), strict=True)),
            # A token may begin with a space of its own, so the separator is searched from the second character on.
            merges=[(merge[: (cut := merge.index(" ", 1))], merge[cut + 1 :]) for merge in merges],
            ignore_merges=spec.ignore_merges,
            byte_fallback=not spec.byte_level,
        )
    except Exception as error:  # the library raises nothing more specific
        raise file.error(f"its vocabulary and merges do not fit together: {error}") from None
    library = Library(bpe)
    install_pre_tokenizer(library, spec)
    return library


def _add_literal_tokens(
    library: tokenizers.Tokenizer, tokens: list[str], special: frozenset[int], literal: frozenset[int]
) -> None:
    """Make these tokens be found in text as they are, before BPE sees it."""
    from tokenizers import AddedToken

    library.add_tokens([AddedToken(tokens[i], normalized=False, special=i in special) for i in sorted(literal)])


# ---- SentencePiece BPE, by scores


def _sentencepiece_bpe(file: _File) -> Tokenizer:
    vocab_size = file.metadata.length("tokenizer.ggml.tokens")
    has_prefix = file.value("ggml.add_space_prefix", bool, True)
    unknown = file.token_id("unknown", vocab_size, _SENTENCEPIECE_IDS["unknown"])
    arrays = (file.metadata.array_bytes(f"tokenizer.ggml.{name}") for name in ("tokens", "scores", "token_type"))
    vocabulary = cached_vocabulary(
        content_key([*arrays, repr((has_prefix, unknown)).encode()]),
        lambda: _sentencepiece_vocabulary(file, unknown, add_dummy_prefix=has_prefix),
    )
    bos = file.token_id("bos", vocab_size, _SENTENCEPIECE_IDS["bos"])
    processor = load_processor(file.path, vocabulary.model)
    backend = SentencePieceBackend(processor, vocabulary.literals, file.prefix(bos, adds_bos=True))
    facts = file.facts(
        backend,
        special_ids=frozenset(vocabulary.special_ids),
        literal_ids=frozenset(vocabulary.literals.values()),
        max_token_length=vocabulary.max_token_length,
        default_ids=_SENTENCEPIECE_IDS,
    )
    return Tokenizer(backend, sentencepiece_bytes, facts)


def _sentencepiece_vocabulary(file: _File, unknown: int | None, *, add_dummy_prefix: bool) -> Vocabulary:
    tokens = file.tokens()
    scores: list[object] = file.value("ggml.scores", list, [0.0] * len(tokens))
    token_types = file.token_types() or [NORMAL] * len(tokens)
    if not len(tokens) <= min(len(scores), len(token_types)):
        raise file.error("it has fewer scores or token types than tokens")
    numbers = [float(score) for score in scores if isinstance(score, int | float) and not math.isnan(score)]
    if len(numbers) < len(scores):
        raise file.error("the scores of its vocabulary are no numbers")
    bytes_pieces = {f"<0x{byte:02X}>" for byte in range(256)}
    byte_fallback = bytes_pieces.issubset(tokens)

    def kind(token_id: int) -> int:
        """Other kinds than these are merged as llama.cpp merges them: like any."""
        if token_id == unknown:
            return UNKNOWN
        if token_types[token_id] in _LITERAL:
            return CONTROL
        return BYTE if byte_fallback and tokens[token_id] in bytes_pieces else NORMAL

    return Vocabulary(
        model=write_bpe_model(
            ((token, numbers[token_id], kind(token_id)) for token_id, token in enumerate(tokens)),
            byte_fallback=byte_fallback,
            add_dummy_prefix=add_dummy_prefix,
        ),
        literals={token: i for i, token in enumerate(tokens) if token_types[i] in _LITERAL},
        special_ids=[i for i in range(len(tokens)) if token_types[i] in _SPECIAL],
        max_token_length=max(map(len, tokens)),
    )


_KINDS: dict[str, Callable[[_File], Tokenizer]] = {  # values of tokenizer.ggml.model
    "gpt2": _byte_level_bpe,
    "llama": _sentencepiece_bpe,
    "gemma4": _gemma4_bpe,
}
