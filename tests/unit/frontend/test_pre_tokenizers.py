"""The table of pre-tokenizers, against the package `regex`, which shares nothing with the library's Oniguruma."""

from __future__ import annotations

import json
import random
import unicodedata
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from tokenizers import Regex, Tokenizer, models
from tokenizers.pre_tokenizers import Sequence, Split

from headrace.frontend.tokenizer.byte_alphabet import byte_level_bytes
from headrace.frontend.tokenizer.pre_tokenizers import PRE_TOKENIZERS, install_pre_tokenizer

# In the order of llama.cpp's src/llama-vocab.cpp, b11434.
NAMES_OF_LLAMA_CPP = """
    default minicpm5 llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano deepseek-llm
    deepseek-coder deepseek-v3 spark2_5 youtu falcon mpt starcoder gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es
    jina-v2-de a.x-4.0 mellum modern-bert jais-2 gemma4 granite-embed-multi-311m mmbert sarvam-moe jina-v1-en
    jina-v2-code roberta-bpe whitespace refact command-r qwen2 deepseek-r1-qwen kormo f2llmv2 qwen35 stablelm2 olmo dbrx
    smaug-bpe poro-chat chatglm-bpe glm4 glm5 viking jais tekken smollm codeshell bloom gpt3-finnish exaone exaone4
    exaone-moe chameleon minerva-7b megrez gpt-4o llama4 kanana2 talkie granite-embed-multi-97m tiny_aya cohere2moe
    superbpe trillion granite-docling bailingmoe bailingmoe2 llada-moe seed-coder hunyuan hunyuan-dense hy_v4 joyai-llm
    kimi-k2 ufakzeka grok-2 afmoe laguna minimax-m2 solar-open mellum2
"""
ONE_NAME_OF_EACH = {spec: name for name, spec in reversed(PRE_TOKENIZERS.items())}.values()
TEXTS: list[str] = json.loads(
    (Path(__file__).parents[2] / "golden" / "data" / "corpus_texts.json").read_text(encoding="utf-8")
)


@cache
def bare_tokenizer(name: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    install_pre_tokenizer(tokenizer, PRE_TOKENIZERS[name])
    return tokenizer


def words_of(name: str, text: str) -> list[bytes]:
    spec, tokenizer = PRE_TOKENIZERS[name], bare_tokenizer(name)
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    return [byte_level_bytes(word) if spec.byte_level else word.encode() for word in words]


def expected_words(name: str, text: str) -> list[bytes]:
    spec = PRE_TOKENIZERS[name]
    if spec.normalize_nfc:
        text = unicodedata.normalize("NFC", text)
    for pattern, replacement in spec.replacements:
        text = regex.sub(pattern, replacement, text, flags=regex.MULTILINE)
    pieces = [text]
    for split in spec.splits:
        pieces = [part for piece in pieces for part in cut(as_regex(split), piece)]
    return [piece.encode() for piece in pieces]


@cache
def as_regex(split: str) -> regex.Pattern[str]:
    """Oniguruma's classes as Unicode properties: its space has no U+001C to U+001F, its \\b looks at these."""
    word = r"[\p{Alphabetic}\p{M}\p{N}\p{Pc}]"
    split = split.replace(r"\s", r"\p{White_Space}").replace(r"\S", r"\P{White_Space}").replace(r"\d", r"\p{Nd}")
    split = split.replace(r"\b", rf"(?:(?<={word})(?!{word})|(?<!{word})(?={word}))")
    split = split.replace("[(", r"[\(").replace("[^(", r"[^\(").replace("|.,!", r"\|.,!").replace("`{-~", r"`\{-~")
    return regex.compile(split, regex.V1 | regex.MULTILINE)


def cut(pattern: regex.Pattern[str], piece: str) -> list[str]:
    borders = [0, *(border for match in pattern.finditer(piece) for border in match.span()), len(piece)]
    return [piece[begin:end] for begin, end in pairwise(borders) if begin < end]


def test_every_name_of_llama_cpp_is_known():
    assert sorted(PRE_TOKENIZERS) == sorted(NAMES_OF_LLAMA_CPP.split())


@pytest.mark.parametrize("name", ONE_NAME_OF_EACH)
def test_words_are_those_that_another_engine_finds(name):
    wrong = [text for text in TEXTS[::4] if words_of(name, text) != expected_words(name, text)]
    assert not wrong


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "I've 123 x!", ["I", "'ve", " 123", " x", "!"]),
        ("smollm", "I've 123 x!", ["I", "'ve", " ", "1", "2", "3", " x", "!"]),
        ("llama-bpe", "I'VE 12345 x!\n\n", ["I", "'VE", " ", "123", "45", " x", "!\n\n"]),
        ("qwen2", "I'VE 123 e\u0301!", ["I", "'VE", " ", "1", "2", "3", " \u00e9", "!"]),
        ("gpt-4o", "camelCase's a/b/\n", ["camel", "Case's", " a", "/b", "/\n"]),
        ("tekken", "it's CamelABC12", ["it", "'s", " Camel", "ABC", "1", "2"]),
        ("deepseek-v3", "#tag 12345日本x", ["#tag", " ", "123", "45", "日本", "x"]),
        ("default", "a+1234", ["a", "+", "123", "4"]),
        ("falcon", "a`1234", ["a", "`", "123", "4"]),
        ("kimi-k2", "漢字kana漢", ["漢字", "kana", "漢"]),
        ("afmoe", "x1234567 12", ["x", "1", "234", "567", " ", "12"]),
        ("superbpe", "by the 1234567 way", ["by the ", "1", "234", "567", " way"]),
        ("tiny_aya", "1234567 1234x", ["1", "234", "567", " ", "123", "4", "x"]),
        ("jais-2", "a" + " " * 7 + "b", ["a", "    ", "  ", " b"]),
        ("gemma4", "a b\n\nc", ["a\u2581b", "\n\n", "c"]),
        ("mmbert", "a b\n\nc", ["\u2581a", "\u2581b", "\n\n", "\u2581c"]),
    ],
)
def test_texts_are_cut_into_words_as_the_name_says(name, text, words):
    assert [word.decode() for word in words_of(name, text)] == words


@pytest.mark.parametrize(
    ("name", "originals"),
    [
        ("tiny_aya", [r"\d{1,3}(?=(?:\d{3})*\b)", PRE_TOKENIZERS["tiny_aya"].splits[1]]),
        ("superbpe", [r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
    ],
)
def test_digits_are_grouped_as_the_original_expressions_group_them(name, originals):
    original = Sequence([Split(Regex(split), behavior="isolated") for split in originals])
    rng = random.Random(3)
    for _ in range(500):
        text = "".join(rng.choice("0123456789" * 3 + "a ._é") for _ in range(rng.randint(1, 24)))
        assert words_of(name, text) == [word.encode() for word, _ in original.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", ONE_NAME_OF_EACH)
def test_no_text_takes_quadratic_time(name):
    # With an expression that looks to the end at every place this test would take minutes.
    for unit in ("1", "a", " ", "\n", "\u0301"):
        text = unit * 30_000
        assert b"".join(words_of(name, text + "x")).replace("\u2581".encode(), b"").strip().endswith(b"x")
