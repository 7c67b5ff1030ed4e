"""Writes tests/golden/data/smollm2_token_ids.json: texts and the ids that they are for SmolLM2's tokenizer.

    python -m tests.golden.make_token_ids        (needs the package `regex`)

The ids come from a plain implementation of byte-level BPE, written after GPT-2's encoder.py and with nothing of
`headrace.frontend.tokenizer` or of the `tokenizers` library in it: an oracle for both.
"""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import regex

from headrace.config.model_files import locate_model
from headrace.formats.gguf import read_gguf

DATA = Path(__file__).with_name("data") / "smollm2_token_ids.json"

# SmolLM2: digits one by one, and between them GPT-2's words.
WORD = regex.compile(r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
DIGIT = regex.compile(r"(\p{N})")

TEXTS: list[str] = json.loads(DATA.with_name("varied_texts.json").read_text())
ALPHABETS = (
    "ab c1 .\n", "éßñçø ", "日本語中文 。", "0123456789 .,", " \t\n\r\u00a0", "😀👍🏾\u200d❤️ x", "אבג دهو ",
    "".join(map(chr, range(0x20, 0x7F))), "\u0300\u0301ae\u0323 ",
)  # fmt: skip


class ReferenceBPE:
    """GPT-2's algorithm: cut into words, write bytes as characters, merge the pair with the lowest rank until none is
    left. Control tokens are cut out of the text first."""

    def __init__(self) -> None:
        metadata = read_gguf(locate_model("")).metadata
        tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
        self.ids = {token: token_id for token_id, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
        control = sorted((token for token, kind in zip(tokens, types, strict=True) if kind == 3), key=len, reverse=True)
        self.control = regex.compile("(" + "|".join(map(regex.escape, control)) + ")")
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        rest = [byte for byte in range(256) if byte not in printable]
        self.characters = {byte: chr(byte) for byte in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self.control.split(text):
            if part in self.ids and self.control.fullmatch(part):
                ids.append(self.ids[part])
                continue
            for piece in DIGIT.split(part):
                for word in WORD.findall(piece):
                    ids += self.encode_word(word)
        return ids

    def encode_word(self, word: str) -> list[int]:
        symbols = [self.characters[byte] for byte in word.encode()]
        while len(symbols) > 1:
            pairs = list(pairwise(symbols))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, 1 << 60))
            if best not in self.ranks:
                break
            merged: list[str] = []
            place = 0
            while place < len(symbols):
                if tuple(symbols[place : place + 2]) == best:
                    merged.append("".join(best))
                    place += 2
                else:
                    merged.append(symbols[place])
                    place += 1
            symbols = merged
        return [self.ids[symbol] for symbol in symbols]


def main() -> None:
    rng = random.Random(2)
    random_texts = [
        "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 40))) for alphabet in ALPHABETS for _ in range(12)
    ]
    any_character = [
        "".join(chr(rng.choice([*range(0xD800), *range(0xE000, 0x11000)])) for _ in range(8)) for _ in range(40)
    ]
    reference = ReferenceBPE()
    cases = [[text, reference.encode(text)] for text in [*TEXTS, *random_texts, *any_character]]
    DATA.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
