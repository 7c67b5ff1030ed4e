"""JSON objects in files that nobody vouches for: bounded, without duplicate keys."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.errors import ModelFormatError

MAX_JSON_BYTES = 64 * 2**20


def refuse_duplicate_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """For `json.loads(object_pairs_hook=...)`: raises `ValueError` instead of keeping the last of two values."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return result


def read_json_object(path: Path) -> dict[str, object]:
    """The JSON object in a file. Raises `ModelFormatError` if it cannot be read, is too large or no object."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelFormatError(f"{path}: larger than {MAX_JSON_BYTES} bytes")
        content = json.loads(path.read_bytes(), object_pairs_hook=refuse_duplicate_keys)
    except OSError as error:
        raise ModelFormatError(f"{path}: cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path}: no valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelFormatError(f"{path}: no JSON object")
    return content
