"""The tokenizers of SmolLM2 and Gemma 3 out of their GGUF files, against ids of implementations that share nothing with
them: make_token_ids.py and make_peer_token_ids.py say which. And tokenizer.json against the `tokenizers` library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

from headrace.config.model_files import locate_model
from headrace.formats.gguf import read_gguf
from headrace.frontend.detokenizer import IncrementalDetokenizer
from headrace.frontend.tokenizer.load import load_tokenizer
from headrace.frontend.tokenizer.pre_tokenizers import PRE_TOKENIZERS, install_pre_tokenizer
from headrace.frontend.tokenizer.tokenizer import Tokenizer
from tests.golden.corpus import corpus
from tests.golden.gemma3 import vocabulary_file
from tests.golden.make_peer_token_ids import ids_digest, one_name_of_each_byte_level_family


def golden(name: str) -> list:
    return json.loads((Path(__file__).with_name("data") / name).read_text(encoding="utf-8"))


TEXTS: list[str] = golden("corpus_texts.json")


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return load_tokenizer(locate_model(""))


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(vocabulary_file(tmp_path_factory.mktemp("gemma3")))


@pytest.fixture(params=["smollm2", "gemma3"])
def model(request) -> tuple[Tokenizer, list[list[int]]]:
    return request.getfixturevalue(request.param), golden(f"corpus_ids_{request.param}.json")


def decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
    return "".join(map(detokenizer.append, ids)) + detokenizer.flush()


def test_the_corpus_is_what_its_program_makes():
    assert corpus() == TEXTS
    assert len(TEXTS) >= 2000


def test_ids_are_those_of_llama_tokenize(model):
    tokenizer, expected = model
    wrong = [
        text
        for text, ids in zip(TEXTS, expected, strict=True)
        if tokenizer.encode(text, add_special_tokens=False) != ids
    ]
    assert not wrong


# Where we follow the models' own files and llama.cpp does not; docs/tokenizers.md says how.
NOT_AS_LLAMA_CPP = {"qwen2", "qwen35", "youtu", "kimi-k2", "afmoe", "tiny_aya"}


def test_every_byte_level_pre_tokenizer_gives_the_ids_of_llama_tokenize():
    tokens: list[str] = read_gguf(locate_model("")).metadata["tokenizer.ggml.tokens"]
    merges: list[str] = read_gguf(locate_model("")).metadata["tokenizer.ggml.merges"]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    library = Library(models.BPE(vocab=vocabulary, merges=[tuple(merge.split(" ")) for merge in merges]))
    library.add_special_tokens(tokens[:17])
    digests = dict(golden("pre_tokenizer_digests.json"))
    assert list(digests) == one_name_of_each_byte_level_family()
    different = set()
    for name, digest in digests.items():
        spec = PRE_TOKENIZERS[name]
        library.normalizer = None
        install_pre_tokenizer(library, spec)
        library.model.ignore_merges = spec.ignore_merges
        ids = [encoding.ids for encoding in library.encode_batch_fast(TEXTS[::3], add_special_tokens=False)]
        if ids_digest(ids) != digest:
            different.add(name)
    assert different == NOT_AS_LLAMA_CPP


def test_smollm2_ids_decode_to_all_of_the_text_that_has_tokens(smollm2):
    """Its vocabulary lacks a few bytes, such as some control characters: they are left out when a text is encoded."""
    tokens = {smollm2.token_bytes(token_id) for token_id in range(smollm2.vocab_size)}
    lacking = {byte for byte in range(256) if bytes([byte]) not in tokens}
    assert lacking <= {*range(0x20), 0x7F, *range(0xC0, 0x100)}
    for text, ids in zip(TEXTS, golden("corpus_ids_smollm2.json"), strict=True):
        assert decode(smollm2, ids).encode() == bytes(byte for byte in text.encode() if byte not in lacking)


def test_gemma_ids_decode_to_the_text(gemma3):
    for text, ids in zip(TEXTS, golden("corpus_ids_gemma3.json"), strict=True):
        assert decode(gemma3, ids) == text.replace("\u2581", " ")  # one sign for both


def test_ids_of_smollm2_are_those_of_a_plain_implementation(smollm2):
    cases = golden("smollm2_token_ids.json")
    assert not [text for text, ids in cases if smollm2.encode(text, add_special_tokens=False) != ids]
    assert all(decode(smollm2, ids) == text for text, ids in cases)


def test_gemma_begins_with_exactly_one_bos(gemma3):
    turn = "<start_of_turn>user\nHi<end_of_turn>\n"
    ids = gemma3.encode(turn, add_special_tokens=True)
    assert ids == [2, 105, 2364, 107, 10979, 106, 107]
    # A template prints the BOS itself; a client may write it before a plain prompt.
    assert gemma3.encode("<bos>" + turn, add_special_tokens=False) == ids
    assert gemma3.encode("<bos>" + turn, add_special_tokens=True) == ids


def byte_level(library: Library) -> None:
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()


def sentencepiece_style(library: Library) -> None:
    library.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    library.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])


@pytest.mark.parametrize("style", [byte_level, sentencepiece_style])
def test_tokenizer_json_gives_what_the_library_gives(tmp_path, style):
    library = Library(models.BPE(byte_fallback=style is sentencepiece_style))
    style(library)
    first = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    alphabet = pre_tokenizers.ByteLevel.alphabet() if style is byte_level else []
    trainer = trainers.BpeTrainer(
        vocab_size=3000, special_tokens=first, initial_alphabet=alphabet, limit_alphabet=600, show_progress=False
    )
    library.train_from_iterator(TEXTS, trainer)
    library.add_tokens([AddedToken("<table>", normalized=False)])
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    tokenizer = load_tokenizer(tmp_path)
    for text in TEXTS:
        ids = library.encode(text).ids
        assert tokenizer.encode(text, add_special_tokens=True) == (ids[1:] if text.startswith("<s>") else ids)
        assert tokenizer.encode(text, add_special_tokens=False) == library.encode(text, add_special_tokens=False).ids
