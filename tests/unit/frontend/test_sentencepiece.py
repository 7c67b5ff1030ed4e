"""SentencePiece-style vocabularies, out of GGUF files and of folders."""

from __future__ import annotations

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.config.cache_folder import CACHE_VARIABLE
from headrace.errors import ModelFormatError
from headrace.frontend.tokenizer import from_gguf
from headrace.frontend.tokenizer.load import load_tokenizer
from headrace.frontend.tokenizer.sentencepiece_backend import LiteralTokens, SentencePieceBackend, load_processor
from headrace.frontend.tokenizer.sentencepiece_model import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    write_bpe_model,
)
from tests.unit.frontend.vocabulary_files import BYTE_PIECES, decode, write_sentencepiece_gguf

# Scores as of a trained model, with ties: the better, the earlier it was merged. "\u00fc" is left to its bytes.
PIECES = {
    "\u2581a": -1.0, "ab": -2.0, "ba": -2.0, "bb": -3.0, "aba": -3.0, "abab": -3.5, "\u2581ab": -4.0,
    "\u2581\u2581": -5.0, "bab": -3.0, "a": -6.0, "b": -7.0, "\u2581": -8.0, "\u00e9": -9.0, "\u00e9b": -0.5,
}  # fmt: skip
FIRST_PIECE = 3 + 256


@pytest.fixture
def gguf(tmp_path) -> Path:
    return write_sentencepiece_gguf(tmp_path / "t.gguf", PIECES)


def merge_by_score(text: str) -> list[int]:
    """The algorithm, plainly: merge the pair whose union has the best score, the leftmost of equals, until there is
    none; then what is no piece is its bytes."""
    symbols = list(text.replace(" ", "\u2581"))
    while True:
        unions = [left + right for left, right in pairwise(symbols)]
        best = max((PIECES[union] for union in unions if union in PIECES), default=None)
        if best is None:
            break
        place = next(i for i, union in enumerate(unions) if PIECES.get(union) == best)
        symbols[place : place + 2] = [unions[place]]
    ids = {piece: FIRST_PIECE + place for place, piece in enumerate(PIECES)}
    return [i for symbol in symbols for i in ([ids[symbol]] if symbol in ids else [3 + b for b in symbol.encode()])]


def test_pieces_are_merged_by_score_and_from_the_left(tmp_path):
    tokenizer = load_tokenizer(write_sentencepiece_gguf(tmp_path / "t.gguf", PIECES, add_space_prefix=False))
    rng = random.Random(4)
    for _ in range(2000):
        text = "".join(rng.choice("aaabbb  \u00e9\u00fc\n\u6f22") for _ in range(rng.randint(0, 30)))
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == merge_by_score(text)
        assert decode(tokenizer, ids) == text


@pytest.mark.parametrize(
    ("changes", "text", "tokens"),
    [
        ({}, "ab", ["<s>", "\u2581ab"]),
        ({}, "<s>ab", ["<s>", "\u2581ab"]),  # exactly one
        ({}, "", ["<s>"]),
        ({}, "ab</s>ab", ["<s>", "\u2581ab", "</s>", "\u2581ab"]),  # each text between special tokens is a beginning
        ({"add_bos_token": False}, "ab", ["\u2581ab"]),
        ({"add_space_prefix": False}, "ab</s> ab", ["<s>", "ab", "</s>", "\u2581ab"]),
        ({"bos_token_id": 2}, "ab", ["</s>", "\u2581ab"]),
        ({"bos_token_id": 1_000_000}, "ab", ["<s>", "\u2581ab"]),
        ({}, "<unk>", ["<s>", "<unk>"]),
        ({}, "<0x41>", ["<s>", "\u2581", *(f"<0x{byte:02X}>" for byte in b"<0x41>")]),  # text, not a token
    ],
)
def test_what_stands_around_a_plain_text(tmp_path, changes, text, tokens):
    tokenizer = load_tokenizer(write_sentencepiece_gguf(tmp_path / "t.gguf", PIECES, **changes))
    assert [tokenizer._backend.token(i) for i in tokenizer.encode(text, add_special_tokens=True)] == tokens


def test_user_defined_tokens_are_found_first_and_the_longest_of_them(tmp_path):
    literals = {"  ": 4, "    ": 4, "\n": 4, "<turn>": 3}
    path = write_sentencepiece_gguf(tmp_path / "t.gguf", PIECES, literals, add_space_prefix=False)
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode("a     a\n<turn>  ", add_special_tokens=False)
    assert [tokenizer._backend.token(i) for i in ids] == ["a", "    ", "\u2581a", "\n", "<turn>", "  "]
    assert [tokenizer.is_special(i) for i in ids] == [False, False, False, False, True, False]
    assert decode(tokenizer, ids) == "a     a\n  "


def test_facts_are_those_of_the_file(gguf):
    tokenizer = load_tokenizer(gguf)
    assert tokenizer.facts.template_variables == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert tokenizer.facts.bos_token_id == 1
    assert tokenizer.facts.special_ids == {0, 1, 2}
    assert tokenizer.facts.max_token_length == len("<0x00>")
    assert tokenizer.vocab_size == FIRST_PIECE + len(PIECES)
    assert tokenizer.token_bytes(tokenizer.vocab_size) == tokenizer.token_bytes(-1) == b""
    assert [tokenizer.token_bytes(i) for i in (3, 3 + 255, FIRST_PIECE)] == [b"\0", b"\xff", b" a"]


def test_without_bytes_an_unknown_character_is_the_unknown_token(tmp_path):
    changes = {"tokens": ["<unk>", "<s>", "</s>", "a", ""], "token_type": [2, 3, 3, 1, 1], "scores": [0.0] * 5}
    tokenizer = load_tokenizer(write_sentencepiece_gguf(tmp_path / "t.gguf", {}, add_space_prefix=False, **changes))
    assert tokenizer.encode("ab", add_special_tokens=False) == [3, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": None},
        {"tokens": [1, 2, 3]},
        {"scores": [0.0]},
        {"scores": ["0"] * (FIRST_PIECE + len(PIECES))},
        {"scores": [float("nan")] * (FIRST_PIECE + len(PIECES))},
        {"token_type": [1]},
        {"tokens": ["a"] * (FIRST_PIECE + len(PIECES))},
    ],
)
def test_vocabularies_that_are_of_no_use_are_refused(tmp_path, changes):
    with pytest.raises(ModelFormatError):
        load_tokenizer(write_sentencepiece_gguf(tmp_path / "t.gguf", PIECES, **changes))


def test_the_longest_literal_at_the_leftmost_place():
    literals = LiteralTokens({"<a>": 1, "<a>b": 2, "b": 3, "b<": 4, "\n": 5, "\n\n": 6})
    assert list(literals.split("x<a>b<a>bb<<a \n\n\n<ab")) == ["x", 2, 2, 4, "<a ", 6, 5, "<a", 3]
    assert list(literals.split("")) == []
    assert list(LiteralTokens({}).split("abc")) == ["abc"]


def test_other_threads_run_on_while_a_long_text_is_encoded(gguf):
    tokenizer = load_tokenizer(gguf)
    begun, ended = threading.Event(), threading.Event()

    def encode() -> None:
        begun.set()
        tokenizer.encode("abba " * 100_000, add_special_tokens=True)
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


# ---- the cache


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "vocabularies"


def refuse_to_build(*_: object, **__: object) -> bytes:
    raise AssertionError("the vocabulary was built again")


def test_a_second_start_reads_what_the_first_has_built(gguf, cache, monkeypatch):
    first = load_tokenizer(gguf)
    monkeypatch.setattr(from_gguf, "write_bpe_model", refuse_to_build)
    second = load_tokenizer(gguf)
    assert second.facts == first.facts
    assert second.encode("aba</s>\u6f22", add_special_tokens=True) == first.encode(
        "aba</s>\u6f22", add_special_tokens=True
    )
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: data[:-1], lambda data: data[:40] + b"\xff" + data[41:], lambda data: b"x" * 99],
)
def test_a_damaged_file_is_built_anew(gguf, cache, monkeypatch, damage):
    ids = load_tokenizer(gguf).encode("aba", add_special_tokens=True)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert load_tokenizer(gguf).encode("aba", add_special_tokens=True) == ids
    assert path.read_bytes() == whole


def test_another_content_is_another_file(tmp_path, cache):
    for number, changes in enumerate([{}, {"add_space_prefix": False}, {"unknown_token_id": 2}]):
        load_tokenizer(write_sentencepiece_gguf(tmp_path / "t.gguf", PIECES, **changes))
        assert len(list(cache.iterdir())) == number + 1
    load_tokenizer(write_sentencepiece_gguf(tmp_path / "t.gguf", PIECES | {"a": -6.5}))
    assert len(list(cache.iterdir())) == 4


def test_a_cache_that_cannot_be_written_is_no_error(gguf, cache):
    cache.parent.write_text("a file where the folder should be")
    assert load_tokenizer(gguf).encode("a", add_special_tokens=False) == [FIRST_PIECE]


def test_a_user_without_a_home_has_no_cache(gguf, monkeypatch):
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert load_tokenizer(gguf).encode("a", add_special_tokens=False) == [FIRST_PIECE]


def test_many_may_start_at_once(gguf, cache):
    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(lambda _: load_tokenizer(gguf).encode("abab", add_special_tokens=True), range(16)))
    assert ids == [ids[0]] * 16
    assert len(list(cache.iterdir())) == 1  # nothing unfinished is left


# ---- folders


def write_model_folder(folder: Path, config: dict[str, object]) -> Path:
    pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    pieces += [(piece, 0.0, BYTE) for piece in BYTE_PIECES] + [(text, score, NORMAL) for text, score in PIECES.items()]
    model = write_bpe_model(pieces, byte_fallback=True, add_dummy_prefix=True)
    (folder / "tokenizer.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_a_folder_with_a_sentencepiece_file_gives_what_the_gguf_file_gives(tmp_path, gguf):
    folder, file = load_tokenizer(write_model_folder(tmp_path, {})), load_tokenizer(gguf)
    assert folder.vocab_size == file.vocab_size
    assert folder.facts.template_variables == {"bos_token": "<s>", "eos_token": "</s>"}
    assert folder.facts.special_ids == file.facts.special_ids
    for text in ("abab \u6f22</s>a", "<s>ab", ""):
        ids = folder.encode(text, add_special_tokens=True)
        assert ids == file.encode(text, add_special_tokens=True)
        assert decode(folder, ids) == decode(file, ids)


def test_a_folder_may_add_tokens_to_its_sentencepiece_file(tmp_path):
    added = {"500": {"content": "<|im_end|>", "special": True}, "501": {"content": "<tool>"}}
    config = {"add_bos_token": False, "bos_token": "<s>", "added_tokens_decoder": added}
    tokenizer = load_tokenizer(write_model_folder(tmp_path, config))
    assert tokenizer.encode("<tool><|im_end|>", add_special_tokens=True) == [501, 500]
    assert tokenizer.vocab_size == 502
    assert [tokenizer.is_special(500), tokenizer.is_special(501)] == [True, False]
    assert decode(tokenizer, [501, 500]) == "<tool>"
    assert tokenizer.token_bytes(450) == b""


@pytest.mark.parametrize("data", [b"", b"\x0a\xff", b"\x0a\x05\x0a\x03abc"])
def test_a_broken_sentencepiece_file_is_refused(tmp_path, data):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ModelFormatError, match=r"tokenizer\.model"):
        load_tokenizer(tmp_path)


def test_control_tokens_that_a_client_spells_are_text(tmp_path):
    path = write_sentencepiece_gguf(tmp_path / "t.gguf", PIECES, {"<turn>": 3, "  ": 4}, add_space_prefix=False)
    tokenizer = load_tokenizer(path)
    turn = tokenizer.encode("<turn>", add_special_tokens=False)
    assert len(turn) == 1
    # As a chat has it: the template's own, then a client's with hidden characters.
    ids = tokenizer.encode_rendered("<turn>a  \U00100000turn>a", lambda text: text.replace("\U00100000", "<"))
    assert ids[:1] == turn
    assert not set(turn) & set(ids[1:])
    assert b"".join(map(tokenizer.token_bytes, ids)) == b"<turn>a  <turn>a"
    assert tokenizer.encode_rendered("<turn>a", None) == [*turn, *tokenizer.encode("a", add_special_tokens=False)]


def test_a_piece_that_is_called_special_only_later_is_spelled_out_in_text():
    """SentencePiece finds user-defined pieces in any text; a folder's tokenizer_config.json may call them special."""
    pieces = [("<unk>", 0.0, UNKNOWN), ("<turn>", 0.0, USER_DEFINED)]
    pieces += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)] + [("a", -1.0, NORMAL), ("<", -2.0, NORMAL)]
    model = write_bpe_model(pieces, byte_fallback=True, add_dummy_prefix=False)
    backend = SentencePieceBackend(load_processor(Path("t"), model), {"<turn>": 1})
    assert backend.encode("a<turn>", add_special_tokens=False) == [258, 1]
    encode = backend.disguised({"<turn>": "\ue000"}, frozenset({1}))
    ids = encode("\ue000a<turn>")
    assert ids[:3] == [1, 258, 259]
    assert 1 not in ids[1:]
    assert [backend.token(i) for i in ids[3:]] == [f"<0x{byte:02X}>" for byte in b"turn>"]
