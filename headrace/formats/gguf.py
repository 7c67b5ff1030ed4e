"""Reader of GGUF headers (versions 2 and 3, little-endian), over a read-only memory map.

Source: ggml/docs/gguf.md. A file is: magic, version, counts; key-value pairs; tensor infos; padding; tensor data.

Opening a file walks the header once and decodes only what is small. Arrays (the vocabulary, its scores and merges) are
stepped over and decoded when somebody asks for them, so that opening costs some 20 ms even for a large vocabulary.
Nothing in the file is trusted: every count is held against the bytes that are left before anything of that size is
done, and every offset is held against the file. Whatever is wrong is a `ModelFormatError` that names the file.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from headrace.errors import ModelFormatError
from headrace.formats.mapped import map_file, release

GGUF_MAGIC = b"GGUF"
MAX_DIMS = 4
MAX_KEY_LENGTH = 65535  # the specification's bound

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
_SCALARS = {  # value type in the file -> struct code
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip


class GGMLType(msgspec.Struct, frozen=True):
    """A tensor type: `block_size` elements are stored together in `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int


GGML_TYPES: dict[int, GGMLType] = {
    number: GGMLType(name, block_size, block_bytes)
    for number, name, block_size, block_bytes in (
        (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210),
        (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98), (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1), (25, "I16", 1, 2), (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56), (30, "BF16", 1, 2), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
    )
}  # fmt: skip


class GGUFTensor(msgspec.Struct, frozen=True):
    """Where a tensor lies. `shape` is row-major, outermost first: the reverse of the order in the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int  # bytes from the start of the file
    num_bytes: int


class _LazyArray(msgspec.Struct, frozen=True):
    """An array that has been stepped over: `count` values of `value_type`, from `position` on."""

    value_type: int
    count: int
    position: int
    end: int


class GGUFMetadata(Mapping[str, object]):
    """The key-value pairs: str, int, float, bool, and lists of them. Arrays are decoded anew at each access."""

    def __init__(self, header: _Header, values: dict[str, object]) -> None:
        self._header = header
        self._values = values

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        return self._header.decode_array(key, value) if isinstance(value, _LazyArray) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def length(self, key: str) -> int:
        """Number of entries of an array, without decoding it. 0 where there is no such array."""
        value = self._values.get(key)
        return value.count if isinstance(value, _LazyArray) else 0

    def array_bytes(self, key: str) -> memoryview:
        """An array as it stands in the file, type and count first: mapped, read-only, for telling contents apart. Empty
        where there is none."""
        value = self._values.get(key)
        if not isinstance(value, _LazyArray):
            return memoryview(b"")
        return memoryview(self._header.data)[value.position - 12 : value.end]

    def text_entry(self, key: str, index: int) -> str | None:
        """One entry of an array of strings, without decoding the others. None where there is none."""
        value = self._values.get(key)
        if not isinstance(value, _LazyArray) or value.value_type != _STRING or not 0 <= index < value.count:
            return None
        return self._header.decode_entry(key, value, index)


class GGUFFile(msgspec.Struct, frozen=True):
    """An open file. The map lives as long as this object or any view into it."""

    path: Path
    version: int
    metadata: GGUFMetadata
    tensors: dict[str, GGUFTensor]
    data: mmap.mmap

    def tensor_data(self, tensor: GGUFTensor) -> memoryview:
        """The raw bytes of a tensor, mapped, read-only."""
        return memoryview(self.data)[tensor.offset : tensor.offset + tensor.num_bytes]

    def release(self, tensor: GGUFTensor) -> None:
        """Its bytes have been read and need not stay in this process's memory."""
        release(self.data, tensor.offset, tensor.num_bytes)


def read_gguf(path: str | Path) -> GGUFFile:
    """Open a GGUF file and read its header. Raises `ModelFormatError`."""
    path = Path(path)
    header = _Header(path, map_file(path))
    version = header.read_version()
    num_tensors, num_values = header.u64(), header.u64()
    header.check_count("metadata pairs", num_values, 13)  # key length, type and at least one byte of value
    values: dict[str, object] = {}
    for _ in range(num_values):
        key, value = header.read_pair()
        if key in values:
            raise header.error(f"the metadata key {key!r} occurs twice")
        values[key] = value
    tensors = header.read_tensors(num_tensors, _alignment(header, values))
    return GGUFFile(path, version, GGUFMetadata(header, values), tensors, header.data)


def _alignment(header: _Header, values: dict[str, object]) -> int:
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
        raise header.error(f"general.alignment is {alignment!r}, not a multiple of 8")
    return alignment


class _Header:
    """A cursor over the header. Every read checks that the bytes are there."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.position = 0

    def error(self, reason: str) -> ModelFormatError:
        return ModelFormatError(f"{self.path}: not a valid GGUF file: {reason}")

    def read_version(self) -> int:
        if self._take(4) != GGUF_MAGIC:
            raise self.error("it does not begin with 'GGUF'")
        version = self.u32()
        if version & 0xFFFF == 0:
            raise self.error("it is big-endian, which is not supported")
        if version not in (2, 3):
            raise self.error(f"version {version} is not supported, only 2 and 3")
        return version

    def u32(self) -> int:
        return int(_U32.unpack(self._take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self._take(8))[0])

    def string(self, what: str, max_length: int | None = None) -> str:
        length = self.u64()
        if max_length is not None and length > max_length:
            raise self.error(f"{what} claims {length} bytes, more than {max_length}")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} is not UTF-8") from None

    def check_count(self, what: str, count: int, least_bytes: int) -> None:
        """Refuse a count that cannot be true, before it makes a loop or a list long."""
        if count * least_bytes > self.size - self.position:
            raise self.error(f"it claims {count} {what}, but only {self.size - self.position} bytes are left")

    def read_pair(self) -> tuple[str, object]:
        key = self.string("a metadata key", MAX_KEY_LENGTH)
        value_type = self.u32()
        if value_type == _ARRAY:
            return key, self._step_over_array(key)
        if value_type == _STRING:
            return key, self.string(f"the value of {key!r}")
        code = self._scalar_code(key, value_type)
        return key, struct.unpack("<" + code, self._take(struct.calcsize(code)))[0]

    def read_tensors(self, count: int, alignment: int) -> dict[str, GGUFTensor]:
        self.check_count("tensors", count, 24)  # name length, number of dimensions, type, offset
        infos = [self._read_tensor_info() for _ in range(count)]
        data_start = -(-self.position // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, tensor_type, offset in infos:
            num_bytes = self._tensor_bytes(name, shape, tensor_type)
            if name in tensors:
                raise self.error(f"the tensor {name!r} occurs twice")
            if offset % alignment:
                raise self.error(f"the offset {offset} of tensor {name!r} is not a multiple of {alignment}")
            if data_start + offset + num_bytes > self.size:
                raise self.error(
                    f"tensor {name!r} ends at byte {data_start + offset + num_bytes}, but the file has {self.size}"
                )
            tensors[name] = GGUFTensor(name, shape, tensor_type, data_start + offset, num_bytes)
        return tensors

    def decode_array(self, key: str, array: _LazyArray) -> list[object]:
        if array.value_type != _STRING:
            return list(struct.unpack_from(f"<{array.count}{_SCALARS[array.value_type]}", self.data, array.position))
        data, position, unpack = self.data[array.position : array.end], 0, _U64.unpack_from
        strings: list[object] = []
        try:
            for _ in range(array.count):
                end = position + 8 + unpack(data, position)[0]
                strings.append(data[position + 8 : end].decode())
                position = end
        except UnicodeDecodeError:
            raise self.error(f"entry {len(strings)} of {key!r} is not UTF-8") from None
        return strings

    def decode_entry(self, key: str, array: _LazyArray, index: int) -> str:
        position, unpack = array.position, _U64.unpack_from
        for _ in range(index):
            position += 8 + unpack(self.data, position)[0]
        try:
            return self.data[position + 8 : position + 8 + unpack(self.data, position)[0]].decode()
        except UnicodeDecodeError:
            raise self.error(f"entry {index} of {key!r} is not UTF-8") from None

    def _take(self, count: int) -> bytes:
        end = self.position + count
        if end > self.size:
            raise self.error(f"it is cut short: {count} bytes expected at byte {self.position} of {self.size}")
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def _scalar_code(self, key: str, value_type: int) -> str:
        try:
            return _SCALARS[value_type]
        except KeyError:
            raise self.error(f"the value of {key!r} has the unknown type {value_type}") from None

    def _step_over_array(self, key: str) -> _LazyArray:
        value_type, count = self.u32(), self.u64()
        if value_type == _ARRAY:
            raise self.error(f"the value of {key!r} is an array of arrays, which is not supported")
        least_bytes = 8 if value_type == _STRING else struct.calcsize(self._scalar_code(key, value_type))
        self.check_count(f"entries in {key!r}", count, least_bytes)
        start = self.position
        if value_type == _STRING:
            self._step_over_strings(key, count)
        else:
            self.position += count * least_bytes
        return _LazyArray(value_type, count, start, self.position)

    def _step_over_strings(self, key: str, count: int) -> None:
        data, position, unpack = self.data, self.position, _U64.unpack_from
        try:
            for _ in range(count):
                position += 8 + unpack(data, position)[0]
        except (struct.error, OverflowError):
            position = self.size + 1
        if position > self.size:
            raise self.error(f"it is cut short inside {key!r}")
        self.position = position

    def _read_tensor_info(self) -> tuple[str, tuple[int, ...], GGMLType, int]:
        name = self.string("a tensor name", MAX_KEY_LENGTH)
        num_dims = self.u32()
        if not 1 <= num_dims <= MAX_DIMS:
            raise self.error(f"tensor {name!r} has {num_dims} dimensions, not 1 to {MAX_DIMS}")
        shape = tuple(self.u64() for _ in range(num_dims))[::-1]
        type_number = self.u32()
        if type_number not in GGML_TYPES:
            raise self.error(f"tensor {name!r} has the unknown type {type_number}")
        return name, shape, GGML_TYPES[type_number], self.u64()

    def _tensor_bytes(self, name: str, shape: tuple[int, ...], tensor_type: GGMLType) -> int:
        num_elements = 1
        for extent in shape:
            num_elements *= extent
        if shape[-1] % tensor_type.block_size:
            raise self.error(
                f"the rows of tensor {name!r} have {shape[-1]} elements, no multiple of {tensor_type.name}'s block of "
                f"{tensor_type.block_size}"
            )
        return num_elements // tensor_type.block_size * tensor_type.block_bytes
