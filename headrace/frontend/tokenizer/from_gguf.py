"""A tokenizer out of a GGUF file's metadata (ggml/docs/gguf.md, "Tokenizer"). Byte-level BPE, `model == "gpt2"`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headrace.errors import ModelFormatError, UnsupportedModelError
from headrace.formats.gguf import read_gguf
from headrace.frontend.tokenizer.byte_alphabet import byte_level_bytes
from headrace.frontend.tokenizer.pre_tokenizers import PreTokenizer, find_pre_tokenizer, install_pre_tokenizer
from headrace.frontend.tokenizer.tokenizer import Tokenizer, TokenizerFacts

if TYPE_CHECKING:
    import tokenizers

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type
_TEMPLATE_VARIABLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}

T = TypeVar("T")


def tokenizer_from_gguf(path: Path) -> Tokenizer:
    """Raises `ModelFormatError` or `UnsupportedModelError`. The demo file (49,152 tokens) takes some 0.15 s."""
    metadata = read_gguf(path).metadata
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise UnsupportedModelError(f"{path}: its tokenizer is of the kind {kind!r}; supported is: 'gpt2'")
    spec = find_pre_tokenizer(_value(path, metadata, "tokenizer.ggml.pre", str, "gpt-2"))
    tokens: list[str] = _value(path, metadata, "tokenizer.ggml.tokens", list)
    token_types: list[int] = _value(path, metadata, "tokenizer.ggml.token_type", list, [])
    control = frozenset(i for i, token_type in enumerate(token_types) if token_type == _CONTROL)
    literal = control.union(i for i, token_type in enumerate(token_types) if token_type == _USER_DEFINED)

    backend = _byte_level_bpe(path, spec, tokens, _value(path, metadata, "tokenizer.ggml.merges", list))
    _add_literal_tokens(backend, tokens, control, literal)
    bos = _token_id(metadata, "bos", tokens)
    if bos is not None and _value(path, metadata, "tokenizer.ggml.add_bos_token", bool, spec.adds_bos):
        _prepend_bos(backend, tokens[bos], bos)
    facts = TokenizerFacts(
        special_ids=control,
        literal_ids=literal,
        max_token_length=max(map(len, tokens), default=1),
        bos_token_id=bos,
        template_variables={
            variable: tokens[token_id]
            for name, variable in _TEMPLATE_VARIABLES.items()
            if (token_id := _token_id(metadata, name, tokens)) is not None
        },
        chat_template=_value(path, metadata, "tokenizer.chat_template", str, "") or None,
    )
    return Tokenizer(backend, byte_level_bytes, facts)


def _value(path: Path, metadata: Mapping[str, object], key: str, kind: type[T], default: T | None = None) -> T:
    value = metadata.get(key, default)
    if not isinstance(value, kind):
        raise ModelFormatError(f"{path}: the metadata key {key!r} is missing or no {kind.__name__}")
    return value


def _token_id(metadata: Mapping[str, object], name: str, tokens: list[str]) -> int | None:
    token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return token_id if isinstance(token_id, int) and 0 <= token_id < len(tokens) else None


def _byte_level_bpe(path: Path, spec: PreTokenizer, tokens: list[str], merges: list[str]) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    try:
        bpe = models.BPE(
            vocab={token: token_id for token_id, token in enumerate(tokens)},
            # A token may begin with a space of its own, so the separator is searched from the second character on.
            merges=[(merge[: (cut := merge.index(" ", 1))], merge[cut + 1 :]) for merge in merges],
            ignore_merges=spec.ignore_merges,
        )
    except Exception as error:  # the library raises nothing more specific
        raise ModelFormatError(f"{path}: its vocabulary and merges do not fit together: {error}") from None
    backend = Backend(bpe)
    install_pre_tokenizer(backend, spec)
    return backend


def _add_literal_tokens(
    backend: tokenizers.Tokenizer, tokens: list[str], control: frozenset[int], literal: frozenset[int]
) -> None:
    """Make these tokens be found in text as they are, before BPE sees it."""
    from tokenizers import AddedToken

    backend.add_tokens([AddedToken(tokens[i], normalized=False, special=i in control) for i in sorted(literal)])


def _prepend_bos(backend: tokenizers.Tokenizer, text: str, token_id: int) -> None:
    from tokenizers.processors import TemplateProcessing

    backend.post_processor = TemplateProcessing(single=f"{text} $A", special_tokens=[(text, token_id)])
