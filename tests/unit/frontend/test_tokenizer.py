"""Tokenizers from both kinds of files. The ids of the demo model are the affair of tests/golden/test_token_ids.py."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from headrace.errors import ModelFormatError, UnsupportedModelError
from headrace.frontend.tokenizer.byte_alphabet import byte_level_bytes, sentencepiece_bytes
from headrace.frontend.tokenizer.load import load_tokenizer
from tests.unit.frontend.vocabulary_files import decode, write_gguf

# ---- files


def write_folder(folder: Path, backend: Backend, config: dict[str, object]) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def byte_level_backend() -> Backend:
    backend = Backend(models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ã": 4, "©": 5}, merges=[("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 6)])
    return backend


# ---- GGUF


def test_control_tokens_are_special_and_user_defined_ones_are_not(tmp_path):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "t.gguf"))
    assert tokenizer.encode("ab<tool>é</s>", add_special_tokens=False) == [5, 9, 7, 8, 1]
    assert [tokenizer.is_special(token_id) for token_id in (0, 1, 5, 9)] == [True, True, False, False]
    assert decode(tokenizer, [5, 9, 7, 8, 1]) == "ab<tool>é"


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({}, [2]),
        ({"add_bos_token": True}, [0, 2]),
        ({"pre": "llama-bpe"}, [0, 2]),
        ({"pre": "llama-bpe", "add_bos_token": False}, [2]),
        ({"add_bos_token": True, "bos_token_id": None}, [2]),
    ],
)
def test_a_bos_comes_before_plain_text_where_the_model_wants_one(tmp_path, changes, ids):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "t.gguf", **changes))
    assert tokenizer.encode("a", add_special_tokens=True) == ids
    assert tokenizer.encode("a", add_special_tokens=False) == [2]


def test_e05_a_text_that_begins_with_the_bos_gets_no_second_one(tmp_path):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "t.gguf", add_bos_token=True))
    assert tokenizer.encode("<s>a", add_special_tokens=True) == [0, 2]


def test_templates_get_the_texts_of_the_special_tokens(tmp_path):
    facts = load_tokenizer(write_gguf(tmp_path / "t.gguf")).facts
    assert facts.template_variables == {"bos_token": "<s>", "eos_token": "</s>"}
    assert facts.chat_template is None
    assert facts.max_token_length == len("<tool>")


def test_an_unknown_pre_tokenizer_is_refused_with_those_that_are_known(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"'klingon'.*supported are: .*gpt-2, gpt-4o, .*smollm"):
        load_tokenizer(write_gguf(tmp_path / "t.gguf", pre="klingon"))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"model": "bert"}, UnsupportedModelError),
        ({"tokens": [1, 2]}, ModelFormatError),
        ({"model": None}, UnsupportedModelError),
        ({"tokens": None}, ModelFormatError),
        ({"merges": "a b"}, ModelFormatError),
        ({"merges": ["a x"]}, ModelFormatError),
        ({"merges": ["nospace"]}, ModelFormatError),
    ],
)
def test_gguf_files_that_are_of_no_use_are_refused(tmp_path, changes, error):
    with pytest.raises(error):
        load_tokenizer(write_gguf(tmp_path / "t.gguf", **changes))


@pytest.mark.parametrize("changes", [{"model": "gemma4", "pre": "klingon"}, {"pre": "gemma4"}, {"pre": "sarvam-moe"}])
def test_bpe_over_text_with_marked_spaces(tmp_path, changes):
    tokens = ["<s>", "</s>", "a", "\u2581", "\u2581a", "\n", "\n\n", *(f"<0x{byte:02X}>" for byte in range(256))]
    pairs = {"tokens": tokens, "token_type": [3, 3, *[1] * 5, *[6] * 256], "merges": ["\u2581 a", "\n \n"]}
    tokenizer = load_tokenizer(write_gguf(tmp_path / "t.gguf", **(pairs | changes)))
    ids = tokenizer.encode("a a\n\n\u00e9</s> a", add_special_tokens=False)
    assert ids == [2, 4, 6, 7 + 0xC3, 7 + 0xA9, 1, 4]
    assert decode(tokenizer, ids) == "a a\n\n\u00e9 a"


def test_a_file_without_a_pre_tokenizer_has_the_default_one(tmp_path):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "t.gguf", pre=None))
    assert tokenizer.encode("ab ab", add_special_tokens=False) == [5, 6, 5]


# ---- folders


def test_a_folder_gives_what_its_tokenizer_json_gives(tmp_path):
    backend = byte_level_backend()
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ messages }}"}
    tokenizer = load_tokenizer(write_folder(tmp_path, backend, config))
    assert tokenizer.encode("ab é</s>", add_special_tokens=True) == backend.encode("ab é</s>").ids == [6, 2, 3, 4, 5, 7]
    assert tokenizer.encode("<s>ab", add_special_tokens=True) == [6, 2]
    assert decode(tokenizer, [6, 2, 3, 4, 5, 7]) == "ab é"
    assert tokenizer.facts.template_variables == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.facts.chat_template == "{{ messages }}"


def test_a_template_file_comes_before_the_one_in_the_configuration(tmp_path):
    write_folder(tmp_path, byte_level_backend(), {"chat_template": "old"})
    (tmp_path / "chat_template.jinja").write_text("new")
    assert load_tokenizer(tmp_path).facts.chat_template == "new"


def test_of_several_templates_the_default_one_counts(tmp_path):
    templates = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    write_folder(tmp_path, byte_level_backend(), {"chat_template": templates})
    assert load_tokenizer(tmp_path).facts.chat_template == "d"


def test_prompts_are_neither_cut_nor_padded(tmp_path):
    backend = byte_level_backend()
    backend.enable_truncation(2)
    backend.enable_padding(length=5)
    write_folder(tmp_path, backend, {})
    assert load_tokenizer(tmp_path).encode("aaa", add_special_tokens=False) == [0, 0, 0]


def test_a_sentencepiece_style_vocabulary_decodes_to_its_bytes(tmp_path):
    pieces = {"<unk>": 0, "▁a": 1, "b": 2, "▁": 3, "a": 4, "<0xC3>": 5, "<0xA9>": 6}
    backend = Backend(models.BPE(vocab=pieces, merges=[("▁", "a")], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = load_tokenizer(write_folder(tmp_path, backend, {}))
    ids = tokenizer.encode("b aé", add_special_tokens=False)
    assert ids == [2, 1, 5, 6]
    assert decode(tokenizer, ids) == "b aé"


def test_a_vocabulary_of_another_kind_is_refused(tmp_path):
    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(" "), "isolated")
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModelError, match="neither byte-level nor SentencePiece"):
        load_tokenizer(write_folder(tmp_path, backend, {}))


def test_a_folder_without_or_with_a_broken_tokenizer_json_is_refused(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"decoder": {"type": "ByteLevel"}}')
    with pytest.raises(ModelFormatError):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("[" * 100_000)
    with pytest.raises(ModelFormatError):
        load_tokenizer(tmp_path)


# ---- both


def test_the_alphabets_of_bytes():
    every = Backend(models.BPE())
    every.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for character in map(chr, range(0x800)):
        ((written, _),) = every.pre_tokenizer.pre_tokenize_str(character)
        assert byte_level_bytes(written) == character.encode()
    assert byte_level_bytes("漢") == "漢".encode()
    assert [sentencepiece_bytes(piece) for piece in ("▁Hi", "<0x0A>", "<0x0a>")] == [b" Hi", b"\n", b"<0x0a>"]


def test_an_id_without_a_token_stands_for_nothing(tokenizer):
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""


def test_h11_other_threads_run_on_while_a_long_text_is_encoded(tokenizer):
    begun, ended = threading.Event(), threading.Event()

    def encode() -> None:
        text = "word " * 100_000
        begun.set()
        tokenizer.encode(text, add_special_tokens=True)
        ended.set()

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait()
    num_turns = 0
    while not ended.is_set():
        time.sleep(0)
        num_turns += 1
    thread.join()
    assert num_turns > 100  # with the interpreter locked it would be one or two


def test_threads_may_share_a_tokenizer(tokenizer):
    texts = [f"text number {number} of many" for number in range(200)]
    alone = [tokenizer.encode(text, add_special_tokens=True) for text in texts]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda text: tokenizer.encode(text, add_special_tokens=True), texts)) == alone
