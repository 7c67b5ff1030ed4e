"""From the files of a model to its `Tokenizer`."""

from __future__ import annotations

from pathlib import Path

from headrace.frontend.tokenizer.tokenizer import Tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a `.gguf` file or of a folder with `tokenizer.json` or `tokenizer.model`.

    Raises `ModelFormatError` for files that are missing or malformed and `UnsupportedModelError` for kinds of
    tokenizers that this version does not have."""
    path = Path(path)
    if path.suffix == ".gguf":
        from headrace.frontend.tokenizer.from_gguf import tokenizer_from_gguf

        return tokenizer_from_gguf(path)
    from headrace.frontend.tokenizer.from_folder import tokenizer_from_folder

    return tokenizer_from_folder(path)
