"""GGUF files written byte by byte, so that tests can write wrong ones too."""

from __future__ import annotations

import struct

STRING, ARRAY = 8, 9


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, value_type: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", value_type) + value


def strings(*values: str) -> bytes:
    return struct.pack("<IQ", STRING, len(values)) + b"".join(map(text, values))


def tensor_info(name: str, dims: tuple[int, ...], type_number: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_number, offset)


def gguf(
    pairs: list[bytes] | None = None,
    infos: list[bytes] | None = None,
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_tensors: int | None = None,
    num_pairs: int | None = None,
) -> bytes:
    pairs, infos = pairs or [], infos or []
    counts = (
        len(infos) if num_tensors is None else num_tensors,
        len(pairs) if num_pairs is None else num_pairs,
    )
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(infos)
    padding = b"\0" * (-len(header) % 32) if data else b""
    return header + padding + data
