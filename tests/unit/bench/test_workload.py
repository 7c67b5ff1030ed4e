"""What is asked."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headrace.bench.workload import Ask, RandomLengths, as_chats, random_ids, random_texts, read_asks
from headrace.errors import ConfigError

LENGTHS = RandomLengths(input_len=20, output_len=10)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_random_prompts_have_the_lengths_and_ids_that_were_asked_for():
    for ids, num_out in random_ids(50, LENGTHS, (7, 11), rng()):
        assert len(ids) == 20
        assert set(ids) <= {7, 8, 9, 10}
        assert num_out == 10


def test_the_seed_decides_prompts():
    prompts = [random_ids(5, LENGTHS, (0, 30000), rng(seed)) for seed in (1, 1, 2)]
    assert prompts[0] == prompts[1] != prompts[2]
    assert len({tuple(ids) for ids, _ in prompts[0]}) == 5


def test_a_prefix_is_shared_and_the_rest_is_not():
    prompts = random_ids(5, RandomLengths(input_len=20, output_len=1, prefix_len=30), (0, 30000), rng())
    assert len({tuple(ids[:30]) for ids, _ in prompts}) == 1
    assert len({tuple(ids[30:]) for ids, _ in prompts}) == 5
    texts = random_texts(5, RandomLengths(input_len=20, output_len=1, prefix_len=30), rng())
    assert len({" ".join(ask.prompt.split()[:30]) for ask in texts}) == 1


def test_lengths_are_drawn_from_the_whole_range():
    lengths = RandomLengths(input_len=10, output_len=4, range_ratio=0.5)
    prompts = random_ids(500, lengths, (0, 9), rng())
    assert {len(ids) for ids, _ in prompts} == set(range(5, 16))
    assert {num_out for _, num_out in prompts} == {2, 3, 4, 5, 6}


def test_texts_have_a_word_for_each_token_and_become_messages():
    texts = random_texts(3, LENGTHS, rng())
    assert [len(ask.prompt.split()) for ask in texts] == [20, 20, 20]
    (chat, *_) = as_chats(texts)
    assert chat.prompt == [{"role": "user", "content": texts[0].prompt}]
    assert chat.is_chat
    with pytest.raises(ConfigError, match="--backend"):
        as_chats([Ask([1, 2], 3)])


ENTRIES = [
    {"prompt": "One", "max_tokens": 5},
    {"prompt": [1, 2, 3], "output_tokens": 6},
    {"messages": [{"role": "user", "content": "Two"}]},
    {"conversations": [{"from": "gpt", "value": "no"}, {"from": "human", "value": "Three"}]},
]
ASKS = [
    Ask("One", 5),
    Ask([1, 2, 3], 6),
    Ask([{"role": "user", "content": "Two"}], 9),
    Ask("Three", 9),
]


@pytest.mark.parametrize("text", [json.dumps(ENTRIES, indent=1), "\n\n".join(map(json.dumps, ENTRIES))])
def test_a_file_of_prompts(tmp_path, text):
    path = tmp_path / "prompts.json"
    path.write_text(text)
    assert read_asks(path, 4, 9, None) == ASKS
    assert read_asks(path, 6, 9, None) == [*ASKS, *ASKS[:2]]
    shuffled = [read_asks(path, 4, 9, rng(seed)) for seed in range(8)]
    assert len(set(map(str, shuffled))) > 1
    assert all(sorted(map(str, asks)) == sorted(map(str, ASKS)) for asks in shuffled)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("", "has no prompts"),
        ('{"prompt": "a"}\n{"text": "b"}', "entry 2"),
        ('["a"]', "entry 1: it must be an object"),
        ('{"prompt": ""}', "is empty"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens"),
        ('{"conversations": [{"from": "gpt", "value": "a"}]}', "no prompt"),
        ('{"messages": "a"}', "no prompt"),
    ],
)
def test_a_file_that_is_wrong_names_the_entry(tmp_path, text, words):
    path = tmp_path / "prompts.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=words) as raised:
        read_asks(path, 1, 9, None)
    assert "--dataset-path" in raised.value.message
