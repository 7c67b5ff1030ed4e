from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf as oracle
import numpy as np
import pytest

from headrace.errors import ModelFormatError
from headrace.formats.gguf import GGML_TYPES, read_gguf
from tests.unit.formats.gguf_bytes import ARRAY, STRING, gguf, pair, strings, tensor_info, text


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file that the gguf package wrote."""
    path = tmp_path / "model.gguf"
    writer = oracle.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_int64("some.negative", -5)
    writer.add_chat_template("{{ messages }} äöü")
    writer.add_token_list(["<s>", "ä", "", "hello world"])
    writer.add_token_scores([0.5, -1.0, 0.0, 2.0])
    writer.add_token_types([3, 1, 1, 1])
    writer.add_tensor("a.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("b.weight", np.arange(64, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_equals_the_oracles(written: Path) -> None:
    file = read_gguf(written)
    for key, field in oracle.GGUFReader(written).fields.items():
        if not key.startswith("GGUF."):
            assert file.metadata[key] == field.contents(), key
    assert file.metadata["tokenizer.ggml.tokens"] == ["<s>", "ä", "", "hello world"]
    assert file.metadata.get("absent") is None


def test_tensors_equal_the_oracles(written: Path) -> None:
    file = read_gguf(written)
    expected = {tensor.name: tensor for tensor in oracle.GGUFReader(written).tensors}
    assert list(file.tensors) == list(expected)
    for name, tensor in file.tensors.items():
        assert tensor.shape == tuple(int(extent) for extent in reversed(expected[name].shape))
        assert tensor.type.name == expected[name].tensor_type.name
        assert bytes(file.tensor_data(tensor)) == expected[name].data.tobytes()


def test_one_entry_of_an_array_of_strings(written: Path) -> None:
    metadata = read_gguf(written).metadata
    assert metadata.length("tokenizer.ggml.tokens") == 4
    assert metadata.text_entry("tokenizer.ggml.tokens", 3) == "hello world"
    assert metadata.text_entry("tokenizer.ggml.tokens", 4) is None
    assert metadata.text_entry("llama.block_count", 0) is None


def test_the_bytes_of_an_array(written: Path) -> None:
    metadata = read_gguf(written).metadata
    scores = struct.pack("<IQ4f", 6, 4, 0.5, -1.0, 0.0, 2.0)
    assert metadata.array_bytes("tokenizer.ggml.scores") == scores
    assert bytes(metadata.array_bytes("tokenizer.ggml.tokens"))[:23] == struct.pack("<IQQ3s", 8, 4, 3, b"<s>")
    assert metadata.array_bytes("llama.block_count") == metadata.array_bytes("absent") == b""


def test_type_table_equals_the_oracles() -> None:
    for number, ggml_type in GGML_TYPES.items():
        kind = oracle.GGMLQuantizationType(number)
        assert kind.name == ggml_type.name
        assert oracle.GGML_QUANT_SIZES[kind] == (ggml_type.block_size, ggml_type.block_bytes)


HUGE = 2**63
HOSTILE = {
    "empty": (b"", "cannot be read"),
    "other magic": (gguf(magic=b"GGML"), "does not begin with 'GGUF'"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version 1": (gguf(version=1), "version 1"),
    "only a magic": (b"GGUF", "cut short"),
    "many pairs": (gguf(num_pairs=HUGE), "metadata pairs"),
    "many tensors": (gguf(num_tensors=HUGE), "tensors"),
    "long key": (gguf([struct.pack("<Q", HUGE)], num_pairs=1), "claims"),
    "long string": (gguf([pair("k", STRING, struct.pack("<Q", HUGE))]), "cut short"),
    "no UTF-8": (gguf([pair("k", STRING, struct.pack("<Q", 1) + b"\xff")]), "not UTF-8"),
    "key twice": (gguf([pair("k", 4, b"\0" * 4)] * 2), "twice"),
    "unknown value type": (gguf([pair("k", 99, b"\0" * 8)]), "unknown type 99"),
    "unknown element type": (gguf([pair("k", ARRAY, struct.pack("<IQ", 77, 1) + b"\0" * 8)]), "unknown type 77"),
    "long array": (gguf([pair("k", ARRAY, struct.pack("<IQ", 4, HUGE))]), "entries"),
    "long array of strings": (gguf([pair("k", ARRAY, struct.pack("<IQ", STRING, HUGE))]), "entries"),
    "string leaves the array": (gguf([pair("k", ARRAY, struct.pack("<IQQ", STRING, 1, HUGE))]), "cut short"),
    "string at the end": (gguf([pair("k", ARRAY, struct.pack("<IQQ", STRING, 1, 2**64 - 1))]), "cut short"),
    "nested arrays": (gguf([pair("k", ARRAY, struct.pack("<IQ", ARRAY, 1) + b"\0" * 12)]), "array of arrays"),
    "alignment 0": (gguf([pair("general.alignment", 4, struct.pack("<I", 0))]), "general.alignment"),
    "alignment text": (gguf([pair("general.alignment", STRING, text("32"))]), "general.alignment"),
    "no dimension": (gguf([], [tensor_info("t", (), 0, 0)], b"\0" * 64), "0 dimensions"),
    "many dimensions": (gguf([], [tensor_info("t", (1,) * 5, 0, 0)], b"\0" * 64), "5 dimensions"),
    "unknown tensor type": (gguf([], [tensor_info("t", (4,), 99, 0)], b"\0" * 64), "unknown type 99"),
    "tensor twice": (gguf([], [tensor_info("t", (4,), 0, 0)] * 2, b"\0" * 64), "twice"),
    "data missing": (gguf([], [tensor_info("t", (32,), 0, 0)], b"\0" * 64), "ends at byte"),
    "offset outside": (gguf([], [tensor_info("t", (4,), 0, 2**40)], b"\0" * 64), "ends at byte"),
    "offset unaligned": (gguf([], [tensor_info("t", (4,), 0, 4)], b"\0" * 64), "multiple of 32"),
    "product overflows": (gguf([], [tensor_info("t", (2**63, 2**63), 0, 0)], b"\0" * 64), "ends at byte"),
    "half a block": (gguf([], [tensor_info("t", (31,), 8, 0)], b"\0" * 64), "block of 32"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_malformed_files_name_their_root_cause(case: str, tmp_path: Path) -> None:
    content, reason = HOSTILE[case]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError) as raised:
        read_gguf(path)
    assert reason in raised.value.message
    assert str(path) in raised.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="cannot be read"):
        read_gguf(tmp_path / "absent.gguf")


def test_every_truncation_and_many_flipped_bytes_end_cleanly(written: Path, tmp_path: Path) -> None:
    content = written.read_bytes()
    path = tmp_path / "damaged.gguf"
    generator = random.Random(20)
    damaged = [content[:length] for length in range(0, len(content) - 32, 7)]
    for _ in range(500):
        flipped = bytearray(content)
        for _ in range(generator.randrange(1, 4)):
            flipped[generator.randrange(len(flipped))] = generator.randrange(256)
        damaged.append(bytes(flipped))
    for version in damaged:
        path.write_bytes(version)
        try:
            file = read_gguf(path)
            for key in file.metadata:
                file.metadata[key]
        except ModelFormatError:
            continue


def test_a_bad_string_inside_an_array_is_found_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([pair("k", ARRAY, strings("a", "b").replace(b"b", b"\xff"))]))
    metadata = read_gguf(path).metadata
    assert metadata.text_entry("k", 0) == "a"
    with pytest.raises(ModelFormatError, match="entry 1 of 'k' is not UTF-8"):
        metadata["k"]
    with pytest.raises(ModelFormatError, match="entry 1 of 'k' is not UTF-8"):
        metadata.text_entry("k", 1)
