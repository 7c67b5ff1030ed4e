r"""How a text is cut into words before BPE merges them, by the names that GGUF files use (`tokenizer.ggml.pre`).

Every name that llama.cpp knows is here (its src/llama-vocab.cpp maps names to expressions). An entry has the
expressions of the models' own tokenizer.json where llama.cpp has simplified them for std::regex. They are Oniguruma's,
as in the `tokenizers` library, and applied one after the other: each cuts the pieces that the one before has left, and
what lies between two matches is a piece too. So an expression may stop without `|\s+` at its end.

Every expression takes time that is linear in the text: a prompt may be one number of a million digits. Where the
original is not, the entry says what it has instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.errors import UnsupportedModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class PreTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """What distinguishes one family of BPE tokenizers from another."""

    splits: tuple[str, ...]  # regular expressions of words, in the order in which they cut
    replacements: tuple[tuple[str, str], ...] = ()  # expressions and what is put for them before anything is cut
    byte_level: bool = True  # tokens are written in the byte alphabet; else as text, with <0xNN> for what none covers
    newlines_whole: bool = False  # a run of newlines that is a token is not merged step by step
    normalize_nfc: bool = False  # compose characters before anything else
    ignore_merges: bool = False  # a word that is in the vocabulary as a whole is not merged step by step
    adds_bos: bool = False  # what holds where the file does not say


# ---- what expressions are made of

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_REST_WITH_SLASHES = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_ASCII_PUNCTUATION = r"[!-/:-@\[-`{-~]"
_HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN_KANA_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"  # sic: from U+0800 on

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_REST}"
_MARKED_WORDS = rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_DEEPSEEK3 = rf"{_MARKED_WORDS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_LINES = r"[^\n]+|\n+"
_PUNCTUATED_WORD = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


def _cased_words(suffix: str, besides: str = "") -> str:
    """Words in which capitals come before small letters. `besides` narrows every class of letters."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    upper, lower = (
        rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{besides}]",
        rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{besides}]",
    )
    return f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}"


_GPT4O = rf"{_cased_words(_CONTRACTION + '?')}|\p{{N}}{{1,3}}|{_REST_WITH_SLASHES}"

# The letters of scripts with capitals, as deepseek-ai/deepseek-llm-7b-base lists them.
_LATIN_GREEK_CYRILLIC = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-"
    "\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_EAST_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)


def _thousands(digit: str, rest: str) -> str:
    """Groups of three digits from the right: one or two digits in front are cut off, then come groups from the left.

    The originals ask before each group whether the rest is a multiple of three, in quadratic time."""
    return rf"(?<!{digit}){digit}{{1,2}}(?=(?:{digit}{{3}})+{rest})"


# ---- the families

_GPT2_FAMILY = PreTokenizer(splits=(_GPT2,))
_STARCODER = PreTokenizer(splits=(r"\p{N}", _GPT2))
_LLAMA3_FAMILY = PreTokenizer(splits=(_LLAMA3,))
_LLAMA3_WITH_BOS = PreTokenizer(splits=(_LLAMA3,), ignore_merges=True, adds_bos=True)
_QWEN2_FAMILY = PreTokenizer(splits=(_QWEN2,))
_GPT4O_FAMILY = PreTokenizer(splits=(_GPT4O,))
_DEEPSEEK3_FAMILY = PreTokenizer(splits=(r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK3))
_BLOOM = PreTokenizer(splits=(_PUNCTUATED_WORD,))
_BAILING = PreTokenizer(
    splits=(rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",)
)
_TINY_AYA = PreTokenizer(
    # \d{1,3}(?=(?:\d{3})*\b): only numbers that no letter follows are grouped from the right.
    splits=(_thousands(r"\d", r"\b") + r"|(?<!\d)\d++\b", _GPT4O)
)
# Tokens are text as SentencePiece writes it, and merges run over whole lines.
_MARKED_SPACES = ((" ", "\u2581"),)
_GEMMA4 = PreTokenizer(splits=(_LINES,), replacements=_MARKED_SPACES, byte_level=False, newlines_whole=True)

_FAMILIES: tuple[tuple[str, PreTokenizer], ...] = (
    (
        "default",
        PreTokenizer(splits=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ),
    (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum modern-bert jina-es "
        "jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe",
        _GPT2_FAMILY,
    ),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", _STARCODER),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", _LLAMA3_WITH_BOS),
    ("dbrx smaug-bpe chatglm-bpe", _LLAMA3_FAMILY),
    ("glm4 glm5", PreTokenizer(splits=(_LLAMA3,), ignore_merges=True)),
    (
        "minicpm5",
        PreTokenizer(splits=(r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_REST}"), ignore_merges=True),
    ),
    (
        "jais-2",
        PreTokenizer(
            splits=(
                rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
                + "".join(rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
                + r"|\s{1,2}(?!\S)|\s",
            )
        ),
    ),
    ("qwen2", PreTokenizer(splits=(_QWEN2,), normalize_nfc=True)),
    ("deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", _QWEN2_FAMILY),
    (
        "qwen35",
        PreTokenizer(
            splits=(
                rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|"
                rf"{_SPACES}",
            ),
            normalize_nfc=True,
        ),
    ),
    ("ufakzeka", PreTokenizer(splits=(rf"{_WORD}|\p{{N}}|{_REST}",))),
    ("laguna", PreTokenizer(splits=(_LINES, _QWEN2))),
    (
        "seed-coder",
        PreTokenizer(splits=(rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)),
    ),
    ("bailingmoe bailingmoe2 llada-moe", _BAILING),
    (
        "exaone-moe",
        PreTokenizer(
            splits=(
                rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|"
                r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    (
        "deepseek-llm",
        PreTokenizer(
            splits=(
                r"[\r\n]",
                rf"\s?[{_LATIN_GREEK_CYRILLIC}]+",
                "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                r"\s+$",
                _HAN_KANA_HANGUL,
                r"\p{N}+",
            )
        ),
    ),
    (
        "deepseek-coder",
        PreTokenizer(splits=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_KANA_HANGUL, r"\p{N}")),
    ),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK3_FAMILY),
    (
        "spark2_5",
        PreTokenizer(
            splits=(
                r"\p{N}{1,3}",
                _HAN_AND_KANA,
                rf"{_MARKED_WORDS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
                r"\p{N}",
            )
        ),
    ),
    (
        "youtu",
        PreTokenizer(
            splits=(
                "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
                f"\ufe30-\ufe4f]+|[\u3105-\u312f]+|{_HAN_AND_KANA}",
                rf"{_cased_words(_CONTRACTION + '?')}|\p{{N}}|{_REST_WITH_SLASHES}",
            ),
            ignore_merges=True,
        ),
    ),
    (
        "afmoe",
        PreTokenizer(splits=(_thousands(r"\p{N}", r"(?!\p{N})") + r"|\p{N}{1,3}", _EAST_ASIAN, _DEEPSEEK3)),
    ),
    ("falcon", PreTokenizer(splits=(r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"))),
    ("poro-chat bloom gpt3-finnish", _BLOOM),
    ("viking", PreTokenizer(splits=(_PUNCTUATED_WORD, r"\p{N}"))),
    (
        "tekken",
        PreTokenizer(splits=(rf"{_cased_words('')}|\p{{N}}|{_REST_WITH_SLASHES}",), ignore_merges=True, adds_bos=True),
    ),
    (
        "chameleon",
        PreTokenizer(
            splits=(
                r"<sentinel:[0-9]+>",
                r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            adds_bos=True,
        ),
    ),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _GPT4O_FAMILY),
    ("granite-embed-multi-97m", PreTokenizer(splits=(_GPT4O,), ignore_merges=True)),
    ("tiny_aya cohere2moe", _TINY_AYA),
    (
        "kimi-k2",
        PreTokenizer(
            splits=(r"\p{Han}+|" + _cased_words(_CONTRACTION + "?", r"&&[^\p{Han}]") + rf"|\p{{N}}{{1,3}}|{_REST}",)
        ),
    ),
    # (?=(\d{3})+(?!\d)) cuts runs of digits.
    ("superbpe", PreTokenizer(splits=(r"\p{N}+", _thousands(r"\d", r"(?!\d)") + r"|\d{3}"))),
    ("gemma4 granite-embed-multi-311m", _GEMMA4),
    ("sarvam-moe", PreTokenizer(splits=(_LINES,), replacements=_MARKED_SPACES, byte_level=False)),
    (
        "mmbert",
        PreTokenizer(
            splits=("\\n+|\u2581[^\u2581\\n]*",),
            replacements=(*_MARKED_SPACES, ("^(?=[^\\n\u2581])", "\u2581")),  # a line begins as every word does
            byte_level=False,
            newlines_whole=True,
        ),
    ),
    ("whitespace", PreTokenizer(splits=(r"\S+",), byte_level=False)),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: spec for names, spec in _FAMILIES for name in names.split()}


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
    """Give a bare BPE tokenizer the normalizer and the word splitter of its family. Token bytes are made of tokens by
    `byte_alphabet`, so it gets no decoder."""
    from tokenizers import Regex, normalizers
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    steps: list[ByteLevel | Split] = [Split(Regex(split), behavior="isolated") for split in spec.splits]
    if spec.byte_level:
        steps.append(ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = Sequence(steps)
    normalizing: list[normalizers.Normalizer] = [normalizers.NFC()] if spec.normalize_nfc else []
    normalizing += [normalizers.Replace(Regex(pattern), text) for pattern, text in spec.replacements]
    if normalizing:
        tokenizer.normalizer = normalizers.Sequence(normalizing)
