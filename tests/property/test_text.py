"""Text out of tokens: whatever the tokens and however they come, the pieces join to what all bytes at once decode to,
and stop strings are found where a plain search finds them. Twenty thousand random cases each, always the same ones."""

from __future__ import annotations

import random

import pytest

from headrace.config.model_files import locate_model
from headrace.contracts.engine import FinishReason
from headrace.contracts.sampling_params import OutputKind, SamplingParams
from headrace.frontend.detokenizer import IncrementalDetokenizer
from headrace.frontend.input_processor import PreparedRequest
from headrace.frontend.output_collector import RequestOutputCollector
from headrace.frontend.output_processor import ChoiceState, RequestState
from headrace.frontend.tokenizer.load import load_tokenizer
from headrace.frontend.tokenizer.tokenizer import Tokenizer
from tests.unit.frontend.test_stop_strings import naive

NUM_CASES = 20_000
TEXTS = [
    "Hello",
    " there",
    "漢字",
    "ď🔥",
    "e\u0301",
    "👍🏾\u200d",
    " \n\n",
    "ab",
    "ba",
    "aa",
    "b",
    "STOP",
    "<|im_end|>",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(locate_model(""))


def random_tokens(rng: random.Random, tokenizer: Tokenizer, words: list[list[int]]) -> list[int]:
    """Single bytes, any tokens, and texts as they are written, which may be cut anywhere."""
    ids: list[int] = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.3:
            ids.append(rng.randrange(tokenizer.vocab_size))
        elif kind < 0.5:
            ids.append(rng.choice(words[2])) if rng.random() < 0.5 else ids.extend(words[3][: rng.randint(1, 9)])
        else:
            ids += rng.choice(words)
    return ids


def pieces_of(rng: random.Random, ids: list[int]) -> list[list[int]]:
    cuts = sorted(rng.randint(0, len(ids)) for _ in range(rng.randint(0, 4)))
    return [ids[start:end] for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


def test_deltas_join_to_the_decoding_of_all_bytes(tokenizer: Tokenizer) -> None:
    rng = random.Random(1)
    words = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    num_cut_characters = 0
    for _ in range(NUM_CASES):
        ids = random_tokens(rng, tokenizer, words)
        skip = rng.random() < 0.5
        shown = [i for i in ids if not (skip and tokenizer.is_special(i))]
        whole = b"".join(map(tokenizer.token_bytes, shown)).decode(errors="replace")
        detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
        deltas = [detokenizer.append(token_id) for token_id in ids]
        last = detokenizer.flush()
        assert "".join(deltas) + last == whole, ids
        num_cut_characters += bool(last)
    assert num_cut_characters > NUM_CASES / 50  # or the cases say nothing


def run_choice(tokenizer: Tokenizer, pieces: list[list[int]], params: SamplingParams) -> tuple[str, str | None]:
    """The text that a choice gives out when its tokens come in these pieces, and what stopped it."""
    prepared = PreparedRequest("r", None, [1], params, [], 0.0)
    request = RequestState(prepared, RequestOutputCollector(OutputKind.DELTA))
    choice = ChoiceState(request, "r-0", 0, tokenizer)
    text = ""
    for place, piece in enumerate(pieces):
        delta, stop = choice.append(piece, FinishReason.LENGTH if place == len(pieces) - 1 else None)
        text += delta
        if stop is not None:
            return text, stop
    return text, None


def test_stop_strings_are_found_where_a_search_in_the_whole_text_finds_them(tokenizer: Tokenizer) -> None:
    rng = random.Random(2)
    words = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    num_stopped = 0
    for _ in range(NUM_CASES):
        ids = random_tokens(rng, tokenizer, words)
        whole = b"".join(map(tokenizer.token_bytes, ids)).decode(errors="replace")
        stops = []
        for _ in range(rng.randint(1, 4)):
            start = rng.randrange(len(whole) + 1)
            cut = whole[start : start + rng.randint(1, 6)]  # of the text itself, now and then with another end
            stops.append((cut + rng.choice(["", "", "", "a", "字"])) or "ab")
        include = rng.random() < 0.5
        params = SamplingParams(
            stop=tuple(stops), include_stop_str_in_output=include, skip_special_tokens=False,
            output_kind=OutputKind.DELTA,
        )  # fmt: skip
        expected = naive(whole, stops, include_stop=include)
        assert run_choice(tokenizer, pieces_of(rng, ids), params) == expected, (ids, stops)
        num_stopped += expected[1] is not None
    assert NUM_CASES / 4 < num_stopped < NUM_CASES  # both ends are met


def test_a_text_that_is_encoded_comes_back(tokenizer: Tokenizer) -> None:
    """Every character of Unicode that is no surrogate, but the few bytes that this vocabulary lacks."""
    lacking = {byte for byte in range(256) if not tokenizer.encode(chr(byte), add_special_tokens=False)}
    rng = random.Random(3)
    for _ in range(2_000):
        text = "".join(chr(rng.choice((rng.randrange(0x20, 0xD800), rng.randrange(0xE000, 0x40000)))) for _ in range(8))
        if lacking.isdisjoint(text.encode()):
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
