"""The two ways in which vocabularies write bytes as text.

Byte-level BPE (GPT-2's encoder.py, `bytes_to_unicode`) gives each of the 256 bytes one printable character.
SentencePiece writes text as it is, a space as U+2581, and a byte that no piece covers as `<0xNN>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

TokenToBytes = Callable[[str], bytes]

_SPACE_MARK = "\u2581"
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_of_character() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + place): byte for place, byte in enumerate(others)})
    return table


_BYTES = _byte_of_character()


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a byte-level BPE token. A token with a character outside the alphabet stands for its own UTF-8."""
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:
        return token.encode()


def sentencepiece_bytes(token: str) -> bytes:
    """The bytes of a SentencePiece piece. The mark of a word's beginning is always a space, also in the first token."""
    byte_piece = _BYTE_PIECE.fullmatch(token)
    if byte_piece:
        return bytes([int(byte_piece[1], 16)])
    return token.replace(_SPACE_MARK, " ").encode()
