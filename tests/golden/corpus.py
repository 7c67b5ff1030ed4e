"""A corpus for tokenizers: `corpus()` makes the same lines every time, from sentences written for it and from chance.

Scripts of the world, code, emoji, right-to-left text, combining marks, control characters, runs of spaces, digits. A
line may hold line ends: it is one text, not one line of a file.
"""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path

_SEED = json.loads(Path(__file__).with_name("data").joinpath("corpus_seed.json").read_text(encoding="utf-8"))
SENTENCES: list[str] = _SEED["sentences"]
CODE: list[str] = _SEED["code"]

ALPHABETS = (
    "ab c1 .\n", "éßñçø 'sS", "日本語中文 。", "0123456789 .,", "0123456789", " \t\n\r\u00a0", " \n", " ", "\t ",
    "😀👍🏾\u200d❤️ x", "אבג دهو ,1", "\u0300\u0301ae\u0323 ", "'stremvdl 'ST\u2019", "¹²½٣४五Ⅳ 1", "{}[]()<>/\\|;:",
    "_-+=*&^%$#@!~`?\"'",
    "abcdefghijklmnopqrstuvwxyz", "aAbB zZ", "한국어 조선 ᄀ", "ўжы ШЩ ё", "กขค ะาิ", "कखग ािी्",
    "ABC\n\n\n   def", "\u2581 a▁",
    "".join(map(chr, range(0x20, 0x7F))), "".join(map(chr, range(0x20))) + "a ", "".join(map(chr, range(0x7F, 0x100))),
)  # fmt: skip


def corpus() -> list[str]:
    rng = random.Random(25)
    lines = [*SENTENCES, *CODE]
    words = [word for line in SENTENCES for word in line.split(" ")]
    code_words = [word for code in CODE for word in code.split(" ")]
    for sentence in SENTENCES:  # as prompts begin and end
        lines += [" " + sentence, sentence + "\n", "\n\n" + sentence.upper(), sentence.replace(" ", "  ")]
        lines.append(unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKC", "NFKD"]), sentence))
        start = rng.randrange(len(sentence) - 6)
        lines.append(sentence[start : start + rng.randint(1, 30)])
    for code in CODE:
        lines += [code.replace("    ", "\t"), code.replace("\n", "\r\n"), code.replace("\n", "\n\n"), code.lower()]
    for alphabet in ALPHABETS:
        lines += ["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 40))) for _ in range(24)]
    lines += [" ".join(rng.choices(words, k=rng.randint(1, 8))) for _ in range(350)]
    lines += [rng.choice(["", " ", "\n", "\t"]).join(rng.choices(code_words, k=rng.randint(2, 10))) for _ in range(150)]
    characters = assigned_characters()
    lines += ["".join(rng.choices(characters, k=8)) for _ in range(250)]
    lines += [str(rng.randrange(10 ** rng.randint(1, 24))) for _ in range(60)]
    lines += [f"{rng.uniform(-1e6, 1e6):,.{rng.randint(0, 6)}f} {rng.choice(words)}" for _ in range(60)]
    for character in " \n\t\r=-a0.":  # runs, around the lengths of the longest tokens
        lines += [character * length for length in (2, 3, 4, 5, 7, 8, 15, 16, 17, 30, 31, 32, 33, 40, 64, 100)]
        lines += [f"x{character * length}y" for length in (1, 2, 3, 4, 8, 31, 32)]
    return list(dict.fromkeys(line for line in lines if line))


def assigned_characters() -> list[str]:
    """Those of Unicode 3.2 up to U+2FFFF, which no table of today can be without."""
    old = unicodedata.ucd_3_2_0
    return [c for c in map(chr, range(0x30000)) if old.category(c) not in ("Cn", "Co", "Cs")]
