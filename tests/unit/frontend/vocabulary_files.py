"""Small tokenizer files, and what their tokens say."""

from __future__ import annotations

import struct
from pathlib import Path

from headrace.frontend.detokenizer import IncrementalDetokenizer
from headrace.frontend.tokenizer.tokenizer import Tokenizer


def write_gguf(path: Path, **changes: object) -> Path:
    """A GGUF file with a vocabulary of a few tokens and no tensors. `None` leaves a key out."""
    pairs: dict[str, object] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": ["<s>", "</s>", "a", "b", "c", "ab", "Ġ", "Ã", "©", "<tool>"],
        "token_type": [3, 3, 1, 1, 1, 1, 1, 1, 1, 4],
        "merges": ["a b"],
        "bos_token_id": 0,
        "eos_token_id": 1,
        **changes,
    }
    return write_metadata(path, pairs)


BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]


def write_sentencepiece_gguf(
    path: Path, pieces: dict[str, float], literals: dict[str, int] | None = None, **changes: object
) -> Path:
    """Control tokens, `literals` (text: kind), all bytes, and `pieces` (text: score), in this order."""
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3} | (literals or {})
    pairs: dict[str, object] = {
        "model": "llama",
        "tokens": [*kinds, *BYTE_PIECES, *pieces],
        "token_type": [*kinds.values(), *[6] * 256, *[1] * len(pieces)],
        "scores": [*[0.0] * (len(kinds) + 256), *pieces.values()],
        **changes,
    }
    return write_metadata(path, pairs)


def write_metadata(path: Path, pairs: dict[str, object]) -> Path:
    values = [(f"tokenizer.ggml.{key}", value) for key, value in pairs.items() if value is not None]
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, len(values))
    path.write_bytes(header + b"".join(_string(key) + _value(value) for key, value in values))
    return path


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: object) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    assert isinstance(value, list)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
    kind, code = (6, "f") if isinstance(value[0], float) else (5, "i")
    return struct.pack(f"<IIQ{len(value)}{code}", 9, kind, len(value), *value)


def decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=True)
    return "".join(map(detokenizer.append, ids)) + detokenizer.flush()
