"""Where weights come from: one face for GGUF files, Hugging Face folders and random numbers."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np

from headrace.config.model_facts import ModelFacts
from headrace.errors import ModelFormatError
from headrace.formats.gguf import GGUFTensor, read_gguf
from headrace.formats.safetensors import SafetensorsTensor, read_safetensors
from headrace.model.ops import StoredTensor

DUMMY_SPREAD = 0.035  # of dummy matrices: uniform between -this and this, a standard deviation of 0.02


class Checkpoint(Protocol):
    def names(self) -> Iterable[str]:
        """Every tensor that there is, so that the loader can see whether one was overlooked."""
        ...

    def dtype(self, name: str) -> str:
        """How the tensor is stored, as `StoredTensor.dtype`. Raises `ModelFormatError` if there is none."""
        ...

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """The tensor of this name, which must have this shape. Raises `ModelFormatError` naming it."""
        ...

    def release(self, name: str) -> None:
        """The tensor has been packed: what was read of the file need not stay in memory. It may be asked for again."""
        ...


def open_checkpoint(facts: ModelFacts, load_format: str, seed: int) -> Checkpoint:
    """`load_format` is a word of `--load-format`."""
    if load_format == "dummy":
        return DummyCheckpoint(seed)
    return GGUFCheckpoint(facts.path) if facts.checkpoint_format == "gguf" else SafetensorsCheckpoint(facts.path)


class GGUFCheckpoint:
    def __init__(self, path: str) -> None:
        self._path = path
        self._file = read_gguf(path)

    def names(self) -> Iterable[str]:
        return self._file.tensors

    def dtype(self, name: str) -> str:
        return self._find(name).type.name

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        tensor = self._find(name)
        _check_shape(self._path, name, tensor.shape, shape)
        return StoredTensor(name, tensor.type.name, shape, self._file.tensor_data(tensor))

    def release(self, name: str) -> None:
        self._file.release(self._find(name))

    def _find(self, name: str) -> GGUFTensor:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise _missing(self._path, name)
        return tensor


class SafetensorsCheckpoint:
    def __init__(self, path: str) -> None:
        self._path = path
        self._files = read_safetensors(Path(path))

    def names(self) -> Iterable[str]:
        return self._files.tensors

    def dtype(self, name: str) -> str:
        return self._find(name).dtype

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        tensor = self._find(name)
        _check_shape(self._path, name, tensor.shape, shape)
        return StoredTensor(name, tensor.dtype, shape, self._files.tensor_data(tensor))

    def release(self, name: str) -> None:
        self._files.release(self._find(name))

    def _find(self, name: str) -> SafetensorsTensor:
        tensor = self._files.tensors.get(name)
        if tensor is None:
            raise _missing(self._path, name)
        return tensor


class DummyCheckpoint:
    """Random matrices and vectors of ones, float32. Each tensor depends on the seed and its own name alone."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def names(self) -> Iterable[str]:
        return ()

    def dtype(self, name: str) -> str:
        return "F32"

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        if len(shape) == 1:
            values = np.ones(shape, np.float32)
        else:
            generator = np.random.default_rng([self._seed & (2**64 - 1), zlib.crc32(name.encode())])
            values = generator.random(shape, np.float32)
            values -= np.float32(0.5)
            values *= np.float32(2 * DUMMY_SPREAD)
        return StoredTensor(name, "F32", shape, values.data.cast("B"))

    def release(self, name: str) -> None:
        pass  # a tensor is made when it is asked for


def _missing(path: str, name: str) -> ModelFormatError:
    return ModelFormatError(f"{path}: the tensor {name!r} is missing")


def _check_shape(path: str, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise ModelFormatError(f"{path}: tensor {name!r} has shape {list(found)}, the model needs {list(expected)}")
