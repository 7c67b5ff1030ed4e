"""How a text is cut into words before BPE merges them, by the names that GGUF files use (`tokenizer.ggml.pre`).

Each entry is the pipeline of the `tokenizers` library that the models behind that name were trained with, taken from
their tokenizer.json; llama.cpp's src/llama-vocab.cpp maps the names to the same expressions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.errors import UnsupportedModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class PreTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """What distinguishes one family of byte-level BPE tokenizers from another."""

    split: str | None = None  # regular expression of the words; None: GPT-2's own
    single_digits: bool = False  # cut between digits first
    normalize_nfc: bool = False  # compose characters before anything else
    ignore_merges: bool = False  # a word that is in the vocabulary as a whole is not merged step by step
    adds_bos: bool = False  # what holds where the file does not say


PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": PreTokenizer(),
    "smollm": PreTokenizer(single_digits=True),
    "llama-bpe": PreTokenizer(
        split=rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}", ignore_merges=True, adds_bos=True
    ),
    "qwen2": PreTokenizer(split=rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}", normalize_nfc=True),
}


def find_pre_tokenizer(name: str) -> PreTokenizer:
    """Raises `UnsupportedModelError` naming those that are known."""
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedModelError(
            f"the model's pre-tokenizer {name!r} is not supported; supported are: {known}"
        ) from None


def install_pre_tokenizer(tokenizer: Tokenizer, spec: PreTokenizer) -> None:
    """Give a bare BPE tokenizer the normalizer, the word splitter and the decoder of its family."""
    from tokenizers import Regex, decoders, normalizers
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    steps: list[ByteLevel | Digits | Split] = []
    if spec.single_digits:
        steps.append(Digits(individual_digits=True))
    if spec.split is not None:
        steps.append(Split(Regex(spec.split), behavior="isolated"))
    steps.append(ByteLevel(add_prefix_space=False, use_regex=spec.split is None))
    tokenizer.pre_tokenizer = Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if spec.normalize_nfc:
        tokenizer.normalizer = normalizers.NFC()
