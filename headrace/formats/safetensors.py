"""Reader of safetensors checkpoints, one file or many shards, over read-only memory maps.

Source: the safetensors format, https://github.com/huggingface/safetensors#format: eight bytes of header length, a JSON
header, tensor data. The standard library is enough to read it; nothing in a file is trusted.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ModelFormatError
from headrace.formats.json_file import read_json_object, refuse_duplicate_keys
from headrace.formats.mapped import map_file, release

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the reference implementation's bound

ITEM_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class SafetensorsTensor:
    """Where a tensor lies: `offset` in bytes from the start of the file `shard`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class SafetensorsCheckpoint:
    """All tensors of a folder. The maps live as long as this object or any view into them."""

    tensors: dict[str, SafetensorsTensor]
    shards: dict[str, mmap.mmap]

    def tensor_data(self, tensor: SafetensorsTensor) -> memoryview:
        """The raw bytes of a tensor, mapped, read-only."""
        return memoryview(self.shards[tensor.shard])[tensor.offset : tensor.offset + tensor.num_bytes]

    def release(self, tensor: SafetensorsTensor) -> None:
        """Its bytes have been read and need not stay in this process's memory."""
        release(self.shards[tensor.shard], tensor.offset, tensor.num_bytes)


def has_safetensors(folder: Path) -> bool:
    """Whether the folder holds weights that `read_safetensors` reads."""
    return (folder / SINGLE_FILE).is_file() or (folder / INDEX_FILE).is_file()


def read_safetensors(folder: Path) -> SafetensorsCheckpoint:
    """Open the checkpoint of a Hugging Face folder and read its headers. Raises `ModelFormatError`."""
    if (folder / INDEX_FILE).is_file():
        return _read_sharded(folder)
    if (folder / SINGLE_FILE).is_file():
        tensors, data = _read_file(folder / SINGLE_FILE)
        return SafetensorsCheckpoint(tensors, {SINGLE_FILE: data})
    raise ModelFormatError(f"{folder}: has neither {SINGLE_FILE} nor {INDEX_FILE} (pickled weights are not read)")


def _read_sharded(folder: Path) -> SafetensorsCheckpoint:
    index = folder / INDEX_FILE
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelFormatError(f"{index}: has no 'weight_map'")
    tensors: dict[str, SafetensorsTensor] = {}
    shards: dict[str, mmap.mmap] = {}
    for shard in sorted({str(name) for name in weight_map.values()}):
        if Path(shard).name != shard:
            raise ModelFormatError(f"{index}: names the file {shard!r}, which is not in the folder")
        in_shard, shards[shard] = _read_file(folder / shard)
        tensors |= {name: tensor for name, tensor in in_shard.items() if weight_map.get(name) == shard}
    for name, shard in weight_map.items():
        if name not in tensors:
            raise ModelFormatError(f"{index}: says that tensor {name!r} is in {shard}, but it is not")
    return SafetensorsCheckpoint(tensors, shards)


def _read_file(path: Path) -> tuple[dict[str, SafetensorsTensor], mmap.mmap]:
    data = map_file(path)
    if len(data) < 8:
        raise _malformed(path, "it is shorter than its header length")
    header_bytes = struct.unpack_from("<Q", data)[0]
    if header_bytes > min(len(data) - 8, MAX_HEADER_BYTES):
        raise _malformed(path, f"its header claims {header_bytes} bytes, the file has {len(data)}")
    try:
        header = json.loads(data[8 : 8 + header_bytes], object_pairs_hook=refuse_duplicate_keys)
    except (ValueError, RecursionError) as error:
        raise _malformed(path, f"its header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise _malformed(path, "its header is no JSON object")
    header.pop("__metadata__", None)
    return {name: _tensor(path, name, entry, 8 + header_bytes, len(data)) for name, entry in header.items()}, data


def _tensor(path: Path, name: str, entry: object, data_start: int, file_size: int) -> SafetensorsTensor:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            raise _malformed(path, f"the entry of tensor {name!r} lacks dtype, shape or data_offsets")
    if dtype not in ITEM_SIZES:
        raise _malformed(path, f"tensor {name!r} has the unknown dtype {dtype!r}")
    if not all(isinstance(extent, int) and extent >= 0 for extent in shape):
        raise _malformed(path, f"tensor {name!r} has the shape {shape!r}")
    if not 0 <= begin <= end <= file_size - data_start:
        raise _malformed(path, f"tensor {name!r} lies at bytes {begin} to {end} of {file_size - data_start}")
    if math.prod(shape) * ITEM_SIZES[dtype] != end - begin:
        raise _malformed(path, f"tensor {name!r} of shape {shape} and dtype {dtype} cannot have {end - begin} bytes")
    return SafetensorsTensor(name, dtype, tuple(shape), path.name, data_start + begin, end - begin)


def _malformed(path: Path, reason: str) -> ModelFormatError:
    return ModelFormatError(f"{path}: not a valid safetensors file: {reason}")
