"""A tokenizer out of a Hugging Face folder: `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headrace.errors import ModelFormatError, UnsupportedModelError
from headrace.frontend.tokenizer.byte_alphabet import TokenToBytes, byte_level_bytes, sentencepiece_bytes
from headrace.frontend.tokenizer.tokenizer import Tokenizer, TokenizerFacts

T = TypeVar("T")

_TEMPLATE_VARIABLES = ("bos_token", "eos_token", "unk_token", "pad_token")


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _TokenizerFile(msgspec.Struct):
    """Of tokenizer.json, what the library does not tell again; the vocabulary is stepped over."""

    added_tokens: list[_AddedToken] = []
    decoder: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _ConfigFile(msgspec.Struct):
    """tokenizer_config.json. A token is its text or a description with `content`."""

    bos_token: str | dict[str, Any] | None = None
    eos_token: str | dict[str, Any] | None = None
    unk_token: str | dict[str, Any] | None = None
    pad_token: str | dict[str, Any] | None = None
    chat_template: str | list[_NamedTemplate] | None = None


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Raises `ModelFormatError` or `UnsupportedModelError`."""
    from tokenizers import Tokenizer as Backend

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UnsupportedModelError(
            f"{folder}: there is no tokenizer.json; other kinds of tokenizers are not supported"
        )
    data = _read(path)
    file = _decode(path, data, _TokenizerFile)
    try:
        backend = Backend.from_buffer(data)
    except Exception as error:  # the library raises nothing more specific
        raise ModelFormatError(f"{path}: {error}") from None
    # Settings for training batches that some files carry; a prompt is neither cut nor filled up.
    backend.no_truncation()
    backend.no_padding()

    config_path = folder / "tokenizer_config.json"
    config = _decode(config_path, _read(config_path), _ConfigFile) if config_path.is_file() else _ConfigFile()
    variables = {name: text for name in _TEMPLATE_VARIABLES if (text := _token_text(getattr(config, name)))}
    facts = TokenizerFacts(
        special_ids=frozenset(token.id for token in file.added_tokens if token.special),
        literal_ids=frozenset(token.id for token in file.added_tokens),
        max_token_length=max(map(len, backend.get_vocab()), default=1),
        bos_token_id=backend.token_to_id(variables["bos_token"]) if "bos_token" in variables else None,
        template_variables=variables,
        chat_template=_chat_template(folder, config),
    )
    return Tokenizer(backend, _alphabet(path, file), facts)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelFormatError(f"{path}: cannot be read: {error}") from None


def _decode(path: Path, data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelFormatError(f"{path}: {error}") from None


def _token_text(token: str | dict[str, Any] | None) -> str | None:
    if isinstance(token, dict):
        content = token.get("content")
        return content if isinstance(content, str) else None
    return token


def _chat_template(folder: Path, config: _ConfigFile) -> str | None:
    """The file of its own first, as transformers does; of several named templates, the one called "default"."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return _read(path).decode()
        except UnicodeDecodeError:
            raise ModelFormatError(f"{path}: it is not UTF-8") from None
    if isinstance(config.chat_template, list):
        return next((entry.template for entry in config.chat_template if entry.name == "default"), None)
    return config.chat_template


def _alphabet(path: Path, file: _TokenizerFile) -> TokenToBytes:
    """How this vocabulary writes bytes, told by its decoder."""
    kinds = set(_kinds(file.decoder)) | set(_kinds(file.pre_tokenizer))
    if "ByteLevel" in kinds:
        return byte_level_bytes
    if kinds & {"ByteFallback", "Metaspace"}:
        return sentencepiece_bytes
    raise UnsupportedModelError(
        f"{path}: its tokens are neither byte-level nor SentencePiece pieces; other vocabularies are not supported"
    )


def _kinds(node: dict[str, Any] | None) -> list[str]:
    """The `type` of a step of the pipeline and of those inside a Sequence."""
    if not node:
        return []
    inner = [kind for key in ("decoders", "pretokenizers") for step in node.get(key, ()) for kind in _kinds(step)]
    return [str(node.get("type")), *inner]
