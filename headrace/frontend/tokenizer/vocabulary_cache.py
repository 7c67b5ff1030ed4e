"""Vocabularies that take long to build, kept on disk by the content that they are built from.

A file is a checksum and msgpack. One that is damaged, of another format or in the way is built anew and replaced; what
cannot be written is not kept. Writers rename a finished file into its place, so any number of them may start at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from headrace.config.cache_folder import cache_folder

logger = logging.getLogger(__name__)

_FORMAT = b"headrace vocabulary 1"  # another number for another content: old files are then not found
_DIGEST_SIZE = 32


class Vocabulary(msgspec.Struct, frozen=True, array_like=True):
    """What a SentencePiece-style vocabulary is to the front end."""

    model: bytes  # SentencePiece's ModelProto
    literals: dict[str, int]  # tokens that are found in text as they are
    special_ids: list[int]
    max_token_length: int


def content_key(parts: Iterable[bytes | memoryview]) -> str:
    """A name for what a vocabulary is built from."""
    digest = hashlib.blake2b(_FORMAT, digest_size=_DIGEST_SIZE)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def cached_vocabulary(key: str, build: Callable[[], Vocabulary]) -> Vocabulary:
    """The vocabulary of that content, built only if no file has it."""
    folder = cache_folder()
    if folder is None:
        return build()
    path = folder / "vocabularies" / key
    vocabulary = _read(path)
    if vocabulary is None:
        vocabulary = build()
        try:
            _write(path, vocabulary)
        except OSError as error:
            logger.info("the vocabulary is not kept in %s: %s", path, error)
    return vocabulary


def _read(path: Path) -> Vocabulary | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    checksum, content = data[:_DIGEST_SIZE], memoryview(data)[_DIGEST_SIZE:]
    if hashlib.blake2b(content, digest_size=_DIGEST_SIZE).digest() != checksum:
        return None
    try:
        return msgspec.msgpack.decode(content, type=Vocabulary)
    except msgspec.DecodeError:
        return None


def _write(path: Path, vocabulary: Vocabulary) -> None:
    import tempfile  # some 3 ms that only the first start needs

    content = msgspec.msgpack.encode(vocabulary)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.blake2b(content, digest_size=_DIGEST_SIZE).digest())
            file.write(content)
        Path(unfinished).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(unfinished).unlink()
        raise
