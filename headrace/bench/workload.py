"""What is asked: random prompts, or those of a file.

Random prompts are drawn anew for each run unless a seed is given, so that no prefix cache has them from an earlier one;
`prefix_len` gives all of them the same beginning, for those who want to measure that cache.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.errors import ConfigError

TokenIds = list[int]
Messages = list[dict[str, str]]

# Words that most vocabularies have as one token, with the space before.
WORDS = re.findall(
    r"\w+",
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information",
)

SHAREGPT_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


class Ask(msgspec.Struct, frozen=True):
    """One request: a text, token ids or messages, and how many tokens of answer."""

    prompt: str | TokenIds | Messages
    num_output_tokens: int

    @property
    def is_chat(self) -> bool:
        return isinstance(self.prompt, list) and bool(self.prompt) and isinstance(self.prompt[0], dict)


class RandomLengths(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of each prompt and answer, drawn evenly from `length * (1 - range_ratio)` to `length * (1 + range_ratio)`.
    The prefix, which all prompts share, comes before that and always has its length."""

    input_len: int
    output_len: int
    prefix_len: int = 0
    range_ratio: float = 0.0


def random_ids(
    num_asks: int, lengths: RandomLengths, ids: tuple[int, int], rng: np.random.Generator
) -> list[tuple[TokenIds, int]]:
    """Prompts of token ids in `[ids[0], ids[1])`, and the tokens to generate."""
    prefix = rng.integers(*ids, lengths.prefix_len).tolist()
    sizes = _draw_sizes(num_asks, lengths, rng)
    return [([*prefix, *rng.integers(*ids, num_in).tolist()], num_out) for num_in, num_out in sizes]


def random_texts(num_asks: int, lengths: RandomLengths, rng: np.random.Generator) -> list[Ask]:
    """Prompts of as many common words, each of which is about a token; the server's usage says how many there were."""
    prefix = _words(lengths.prefix_len, rng)
    sizes = _draw_sizes(num_asks, lengths, rng)
    return [Ask(" ".join([*prefix, *_words(num_in, rng)]), num_out) for num_in, num_out in sizes]


def as_chats(asks: list[Ask]) -> list[Ask]:
    """Texts become a user's message. Raises `ConfigError` for token ids, which no message can hold."""
    return [
        ask if ask.is_chat else Ask([{"role": "user", "content": _text(ask)}], ask.num_output_tokens) for ask in asks
    ]


def read_asks(path: Path, num_asks: int, output_len: int, rng: np.random.Generator | None) -> list[Ask]:
    """The prompts of a file, in an order that `rng` draws; they are asked again from the first if there are too few.

    The file is a JSON array or has a JSON object in each line: `{"prompt": TEXT or [ID, ...]}`, `{"messages": [...]}`
    or, as in ShareGPT, `{"conversations": [{"from": "human", "value": TEXT}, ...]}`, whose first message is asked.
    `max_tokens` or `output_tokens` beside it says how many tokens to generate, `output_len` where nothing does.

    Raises `ConfigError` for what cannot be read, with the number of the entry."""
    entries = _read_entries(path)
    asks = [_ask_of(path, number, entry, output_len) for number, entry in enumerate(entries, start=1)]
    if not asks:
        raise ConfigError(f"{path} has no prompts", flag="--dataset-path")
    if rng is not None:
        asks = [asks[place] for place in rng.permutation(len(asks))]
    return [asks[place % len(asks)] for place in range(num_asks)]


def _draw_sizes(num_asks: int, lengths: RandomLengths, rng: np.random.Generator) -> list[tuple[int, int]]:
    def draw(length: int) -> list[int]:
        low, high = round(length * (1 - lengths.range_ratio)), round(length * (1 + lengths.range_ratio))
        return [max(1, size) for size in rng.integers(low, high + 1, num_asks).tolist()]

    return list(zip(draw(lengths.input_len), draw(lengths.output_len), strict=True))


def _words(count: int, rng: np.random.Generator) -> list[str]:
    return [WORDS[place] for place in rng.integers(0, len(WORDS), count)]


def _text(ask: Ask) -> str:
    if not isinstance(ask.prompt, str):
        raise ConfigError("a prompt of token ids cannot be a chat message; use --backend openai", flag="--backend")
    return ask.prompt


def _read_entries(path: Path) -> list[Any]:
    try:
        text = path.read_text()
        if text.lstrip().startswith("["):
            return list(json.loads(text))
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON, an array or an object in each line: {error}",
                          flag="--dataset-path") from None  # fmt: skip


def _ask_of(path: Path, number: int, entry: Any, output_len: int) -> Ask:
    """Raises `ConfigError` for an entry that is no request."""

    def wrong(what: str) -> ConfigError:
        return ConfigError(f"{path}, entry {number}: {what}", flag="--dataset-path")

    if not isinstance(entry, dict):
        raise wrong("it must be an object with prompt, messages or conversations")
    num_output_tokens = entry.get("max_tokens", entry.get("output_tokens", output_len))
    if not isinstance(num_output_tokens, int) or num_output_tokens < 1:
        raise wrong("max_tokens must be a number from 1")
    try:
        if "conversations" in entry:
            turns = msgspec.convert(entry["conversations"], list[dict[str, Any]])
            first = next((turn for turn in turns if SHAREGPT_ROLES.get(turn.get("from", "")) == "user"), {})
            return Ask(msgspec.convert(first.get("value"), str), num_output_tokens)
        if "messages" in entry:
            prompt: str | TokenIds | Messages = msgspec.convert(entry["messages"], list[dict[str, str]])
        else:
            prompt = msgspec.convert(entry.get("prompt"), str | list[int])
    except msgspec.ValidationError as error:
        raise wrong(f"no prompt, messages or conversations that could be asked ({error})") from None
    if not prompt:
        raise wrong("the prompt is empty")
    return Ask(prompt, num_output_tokens)
