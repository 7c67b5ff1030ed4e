"""SmolLM2's tokenizer, out of the demo model's GGUF file, against ids of an implementation that shares nothing with
it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.config.model_files import locate_model
from headrace.frontend.detokenizer import IncrementalDetokenizer
from headrace.frontend.tokenizer.load import load_tokenizer
from headrace.frontend.tokenizer.tokenizer import Tokenizer

CASES = json.loads((Path(__file__).with_name("data") / "smollm2_token_ids.json").read_text())


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(locate_model(""))


def test_ids_of_varied_texts(tokenizer):
    wrong = [text for text, ids in CASES if tokenizer.encode(text, add_special_tokens=False) != ids]
    assert not wrong


def test_ids_decode_to_the_text_that_they_came_from(tokenizer):
    for text, ids in CASES:
        detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
        assert "".join(map(detokenizer.append, ids)) + detokenizer.flush() == text
