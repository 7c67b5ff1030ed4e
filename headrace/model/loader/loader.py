"""`load_program`: an architecture's weight list, read from a checkpoint and packed by a backend, several at a time."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from headrace.config.model_facts import ModelFacts
from headrace.errors import ModelFormatError
from headrace.model import rope
from headrace.model.loader.checkpoint import Checkpoint
from headrace.model.ops import Memory, StoredTensor, Weight
from headrace.model.registry import find_architecture
from headrace.model.weights import CheckpointNames, MatrixSpec, Part, Program, RopeSpec, VectorSpec, WeightSpec


def load_program(
    facts: ModelFacts, checkpoint: Checkpoint, memory: Memory, *, num_positions: int, num_threads: int
) -> Program:
    """The model, ready to run. `num_positions` is the longest sequence that rope tables are made for.

    Raises `ModelFormatError` for a tensor that is missing, of another shape, or there but unknown to the architecture;
    `UnsupportedModelError` for a stored type that the backend does not read.
    """
    architecture = find_architecture(facts.architecture)
    specs = architecture.weight_specs(facts)
    reader = _Reader(facts, architecture.checkpoints[facts.checkpoint_format], checkpoint)
    reader.refuse_unknown(specs)

    def pack(spec: WeightSpec) -> Weight:
        weight = _pack(spec, reader, memory, num_positions)
        for name in _part_names(spec):
            reader.release(name)
        return weight

    # The largest first, so that no thread is left with one when the others have finished.
    specs.sort(key=_num_elements, reverse=True)
    with ThreadPoolExecutor(num_threads) as pool:
        weights = dict(zip([spec.name for spec in specs], pool.map(pack, specs), strict=True))
    return architecture(facts, weights)


def _pack(spec: WeightSpec, reader: _Reader, memory: Memory, num_positions: int) -> Weight:
    match spec:
        case MatrixSpec():
            parts = [reader.read(part) for part in spec.parts]
            if spec.is_gated:
                return memory.pack_gated(*parts)
            return memory.pack_matrix(parts, [reader.read(bias) for bias in spec.biases])
        case VectorSpec():
            return memory.pack_vector(reader.read(Part(spec.name, (spec.size,))))
        case RopeSpec():
            return memory.rope_table(rope.frequencies(spec.facts), num_positions, rope.table_factor(spec.facts))


def stored_types(facts: ModelFacts, checkpoint: Checkpoint) -> dict[str, str]:
    """How each part of a matrix is stored, by its name. Nothing is read. Raises `ModelFormatError` for one that is
    missing."""
    architecture = find_architecture(facts.architecture)
    reader = _Reader(facts, architecture.checkpoints[facts.checkpoint_format], checkpoint)
    specs = [spec for spec in architecture.weight_specs(facts) if isinstance(spec, MatrixSpec)]
    return {part.name: reader.dtype(part) for spec in specs for part in spec.parts}


class _Reader:
    """Finds parts in a checkpoint under the names that this kind of checkpoint has for them."""

    def __init__(self, facts: ModelFacts, names: CheckpointNames, checkpoint: Checkpoint) -> None:
        self._facts = facts
        self._names = names
        self._checkpoint = checkpoint

    def read(self, part: Part) -> StoredTensor:
        pattern, name = self._lookup(part.name)
        tensor = self._checkpoint.tensor(name, part.shape)
        return rows_to_halves(tensor, part.num_heads) if pattern in self._names.interleaved else tensor

    def dtype(self, part: Part) -> str:
        return self._checkpoint.dtype(self._lookup(part.name)[1])

    def release(self, part_name: str) -> None:
        self._checkpoint.release(self._lookup(part_name)[1])

    def refuse_unknown(self, specs: list[WeightSpec]) -> None:
        """A tensor that no spec asks for would be left out of the arithmetic: an error, unless known to be right."""
        wanted = {self._lookup(name)[1] for spec in specs for name in _part_names(spec)}
        for name in self._checkpoint.names():
            if name not in wanted and not any(re.fullmatch(pattern, name) for pattern in self._names.ignored):
                raise ModelFormatError(
                    f"{self._facts.path}: the architecture {self._facts.architecture!r} has no use for the tensor "
                    f"{name!r}, and leaving it out would change the model"
                )

    def _lookup(self, part_name: str) -> tuple[str, str]:
        """`layers.7.q` -> the pattern `layers.{}.q` and the name in the file."""
        pattern = re.sub(r"\.(\d+)\.", ".{}.", part_name)
        layer = re.search(r"\.(\d+)\.", part_name)
        return pattern, self._names.names[pattern].format(layer.group(1) if layer else "")


def rows_to_halves(tensor: StoredTensor, num_heads: int) -> StoredTensor:
    """Rows of each head from pairs (0, 1), (2, 3), ... to halves: all first members of a pair, then all second ones.

    Works on rows as stored, whatever their format: the bytes of a row stay together. An element of a bias is a row.
    """
    stored = np.frombuffer(tensor.data, np.uint8).reshape(num_heads, -1, 2, tensor.data.nbytes // tensor.shape[0])
    halves = np.ascontiguousarray(stored.swapaxes(1, 2))
    return StoredTensor(tensor.name, tensor.dtype, tensor.shape, halves.data.cast("B"))


def _part_names(spec: WeightSpec) -> list[str]:
    match spec:
        case MatrixSpec():
            return [part.name for part in (*spec.parts, *spec.biases)]
        case VectorSpec():
            return [spec.name]
        case RopeSpec():
            return []


def _num_elements(spec: WeightSpec) -> int:
    match spec:
        case MatrixSpec():
            return spec.shape[0] * spec.shape[1]
        case VectorSpec():
            return spec.size
        case RopeSpec():
            return 0
