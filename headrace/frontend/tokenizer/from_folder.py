"""A tokenizer out of a Hugging Face folder: `tokenizer.json`, or else `tokenizer.model` (SentencePiece), with
`tokenizer_config.json` and `chat_template.jinja`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headrace.errors import ModelFormatError, UnsupportedModelError
from headrace.frontend.tokenizer.byte_alphabet import TokenToBytes, byte_level_bytes, sentencepiece_bytes
from headrace.frontend.tokenizer.pipeline import Pipeline
from headrace.frontend.tokenizer.sentencepiece_backend import SentencePieceBackend, load_processor
from headrace.frontend.tokenizer.tokenizer import Tokenizer, TokenizerFacts

T = TypeVar("T")

_TEMPLATE_VARIABLES = ("bos_token", "eos_token", "unk_token", "pad_token")


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _AddedTokenOfConfig(msgspec.Struct):
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
    add_bos_token: bool | None = None
    added_tokens_decoder: dict[int, _AddedTokenOfConfig] = {}


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Raises `ModelFormatError` or `UnsupportedModelError`."""
    config_path = folder / "tokenizer_config.json"
    config = _decode(config_path, _read(config_path), _ConfigFile) if config_path.is_file() else _ConfigFile()
    if (path := folder / "tokenizer.json").is_file():
        return _from_tokenizer_json(path, config)
    if (path := folder / "tokenizer.model").is_file():
        return _from_sentencepiece(path, config)
    raise UnsupportedModelError(
        f"{folder}: there is no tokenizer.json and no tokenizer.model; other kinds of tokenizers are not supported"
    )


def _from_tokenizer_json(path: Path, config: _ConfigFile) -> Tokenizer:
    from tokenizers import Tokenizer as Library

    data = _read(path)
    file = _decode(path, data, _TokenizerFile)
    try:
        library = Library.from_buffer(data)
    except Exception as error:  # the library raises nothing more specific
        raise ModelFormatError(f"{path}: {error}") from None
    # Settings for training batches that some files carry; a prompt is neither cut nor filled up.
    library.no_truncation()
    library.no_padding()
    variables = _template_variables(config)
    facts = TokenizerFacts(
        special_ids=frozenset(token.id for token in file.added_tokens if token.special),
        literal_ids=frozenset(token.id for token in file.added_tokens),
        max_token_length=max(map(len, library.get_vocab()), default=1),
        bos_token_id=library.token_to_id(variables["bos_token"]) if "bos_token" in variables else None,
        template_variables=variables,
        chat_template=_chat_template(path.parent, config),
    )
    return Tokenizer(Pipeline(library), _alphabet(path, file), facts)


def _from_sentencepiece(path: Path, config: _ConfigFile) -> Tokenizer:
    """Control pieces and the tokens that the configuration adds are found in text as they are; the model itself finds
    the user-defined ones. As transformers' slow tokenizers do it (tokenization_llama.py)."""
    processor = load_processor(path, _read(path))
    num_pieces = processor.get_piece_size()
    special = {i for i in range(num_pieces) if processor.is_control(i) or processor.is_unknown(i)}
    literals: dict[str, int] = {processor.id_to_piece(i): i for i in special}
    for token_id, added in config.added_tokens_decoder.items():
        if added.content and token_id >= 0:
            literals[added.content] = token_id
            if added.special:
                special.add(token_id)
    variables = _template_variables(config)
    for name, token_id in (("bos_token", processor.bos_id()), ("eos_token", processor.eos_id())):
        if token_id >= 0:
            variables.setdefault(name, processor.id_to_piece(token_id))
    bos = literals.get(variables.get("bos_token", ""))
    backend = SentencePieceBackend(processor, literals, [] if bos is None or config.add_bos_token is False else [bos])
    facts = TokenizerFacts(
        special_ids=frozenset(special),
        literal_ids=frozenset(literals.values()),
        max_token_length=max(map(len, [*literals, *map(processor.id_to_piece, range(num_pieces))])),
        bos_token_id=bos,
        template_variables=variables,
        chat_template=_chat_template(path.parent, config),
    )
    return Tokenizer(backend, sentencepiece_bytes, facts)


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


def _template_variables(config: _ConfigFile) -> dict[str, str]:
    return {name: text for name in _TEMPLATE_VARIABLES if (text := _token_text(getattr(config, name)))}


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
