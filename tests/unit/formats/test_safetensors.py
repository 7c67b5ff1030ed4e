from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from headrace.errors import ModelFormatError
from headrace.formats.safetensors import INDEX_FILE, SINGLE_FILE, has_safetensors, read_safetensors


def arrays(*names: str) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    return {name: generator.standard_normal((3, 5)).astype(np.float16) for name in names}


def test_a_single_file_reads_as_the_oracle_reads_it(tmp_path: Path) -> None:
    save_file(arrays("a", "b") | {"empty": np.zeros((0, 4), np.float32)}, tmp_path / SINGLE_FILE)
    checkpoint = read_safetensors(tmp_path)
    with safe_open(tmp_path / SINGLE_FILE, "numpy") as oracle:
        assert sorted(checkpoint.tensors) == sorted(oracle.keys())
        for name, tensor in checkpoint.tensors.items():
            expected = oracle.get_tensor(name)
            assert tensor.shape == expected.shape
            assert bytes(checkpoint.tensor_data(tensor)) == expected.tobytes()


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    first, second = arrays("a", "b"), arrays("c")
    save_file(first, tmp_path / "one.safetensors")
    save_file(second, tmp_path / "two.safetensors")
    weight_map = dict.fromkeys(first, "one.safetensors") | dict.fromkeys(second, "two.safetensors")
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = read_safetensors(tmp_path)
    assert {name: bytes(checkpoint.tensor_data(tensor)) for name, tensor in checkpoint.tensors.items()} == {
        name: array.tobytes() for name, array in (first | second).items()
    }


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({}, "no 'weight_map'"),
        ({"weight_map": {"a": "../one.safetensors"}}, "not in the folder"),
        ({"weight_map": {"a": "absent.safetensors"}}, "cannot be read"),
        ({"weight_map": {"z": "one.safetensors"}}, "'z'"),
        ([], "no JSON object"),
    ],
)
def test_a_wrong_index_names_its_root_cause(index: object, reason: str, tmp_path: Path) -> None:
    save_file(arrays("a"), tmp_path / "one.safetensors")
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(ModelFormatError) as raised:
        read_safetensors(tmp_path)
    assert reason in raised.value.message


def file_with(header: object, data: bytes = b"\0" * 16) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be read"),
        (b"\0\0\0", "shorter than"),
        (struct.pack("<Q", 2**62) + b"{}", "claims"),
        (file_with(b"{"), "no JSON"),
        (file_with(b"[]"), "no JSON object"),
        (file_with(b"[" * 100_000), "no JSON"),
        (file_with(b'{"t": 1, "t": 2}'), "occurs twice"),
        (file_with({"t": {}}), "lacks"),
        (file_with(entry(dtype="F7")), "unknown dtype"),
        (file_with(entry(shape=(-2,))), "shape"),
        (file_with(entry(offsets=(0, 9))), "cannot have 9 bytes"),
        (file_with(entry(offsets=(8, 0))), "lies at"),
        (file_with(entry(offsets=(12, 20))), "lies at"),
        (file_with(entry(shape=(2**40, 2**40))), "cannot have"),
    ],
)
def test_malformed_files_name_their_root_cause(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / SINGLE_FILE).write_bytes(content)
    with pytest.raises(ModelFormatError) as raised:
        read_safetensors(tmp_path)
    assert reason in raised.value.message


def test_a_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickled")
    assert not has_safetensors(tmp_path)
    with pytest.raises(ModelFormatError, match="pickled weights are not read"):
        read_safetensors(tmp_path)
