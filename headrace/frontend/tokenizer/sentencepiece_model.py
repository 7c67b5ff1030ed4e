"""Writes SentencePiece models: a `ModelProto` of sentencepiece_model.proto, in protobuf's wire format, by hand.

Only what decides how BPE encodes is written: pieces, scores, kinds, and no normalization but spaces to U+2581.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import cache

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # SentencePiece.Type; GGUF has the same numbers

_FLOAT = struct.Struct("<f")


def write_bpe_model(pieces: Iterable[tuple[str, float, int]], *, byte_fallback: bool, add_dummy_prefix: bool) -> bytes:
    """`pieces`: text, score and kind of each, in the order of their ids. Exactly one of them must be UNKNOWN, and all
    256 of `<0xNN>` must be BYTE for `byte_fallback`. `add_dummy_prefix` puts a space before every text."""
    model = bytearray()
    for text, score, kind in pieces:
        data = text.encode()
        piece = _head(1, len(data)) + data + b"\x15" + _FLOAT.pack(score) + _number(3, kind)
        model += _head(1, len(piece)) + piece
    model += _message(2, _number(3, 2) + _number(35, byte_fallback))  # trainer_spec: model_type BPE, byte_fallback
    # normalizer_spec: add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces
    model += _message(3, _number(3, add_dummy_prefix) + _number(4, False) + _number(5, True))
    return bytes(model)


def _message(field: int, data: bytes) -> bytes:
    return _head(field, len(data)) + data


@cache  # few lengths and kinds, a quarter of a million pieces
def _head(field: int, length: int) -> bytes:
    return _varint(field << 3 | 2) + _varint(length)


@cache
def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
