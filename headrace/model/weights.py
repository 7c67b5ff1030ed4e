"""How an architecture says which weights it needs, and what they are called in a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from headrace.config.model_facts import ModelFacts, RopeFacts
from headrace.model.ops import Activation, AttentionSpec, Ops, Step, Weight


class Part(msgspec.Struct, frozen=True):
    """A tensor of the checkpoint, by the architecture's own name for it, and the shape that it must have."""

    name: str
    shape: tuple[int, ...]
    num_heads: int = 1  # that the rows are divided among


class MatrixSpec(msgspec.Struct, frozen=True):
    """A weight matrix `[out, in]` for `linear` and `embed`: the parts' rows, one below the other."""

    name: str
    parts: tuple[Part, ...]
    is_gated: bool = False  # two parts, gate and up, for `gated_mlp`
    biases: tuple[Part, ...] = ()  # none, or one of one dimension for each part, which `linear` adds

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]


class VectorSpec(msgspec.Struct, frozen=True):
    """A weight vector, such as a norm's."""

    name: str
    size: int


class RopeSpec(msgspec.Struct, frozen=True):
    """A rope table; computed, not read."""

    name: str
    facts: RopeFacts


WeightSpec = MatrixSpec | VectorSpec | RopeSpec


class CheckpointNames(msgspec.Struct, frozen=True):
    """What one kind of checkpoint calls the parts: `layers.7.q` is looked up as `layers.{}.q`."""

    names: Mapping[str, str]
    interleaved: frozenset[str] = frozenset()  # parts whose rows, within a head, are stored in pairs (2i, 2i + 1)
    ignored: tuple[str, ...] = ()  # regular expressions of tensors that the program knowingly does without


class Program(Protocol):
    """An architecture with its weights: what `model.registry` makes."""

    @property
    def attention_layers(self) -> tuple[AttentionSpec, ...]: ...

    def forward(self, ops: Ops, step: Step) -> Activation:
        """Logits of the step's sample rows, `[num_samples, vocab]`."""
        ...


class Architecture(Protocol):
    """A class in `model/arch/`."""

    checkpoints: Mapping[str, CheckpointNames]  # by ModelFacts.checkpoint_format

    @staticmethod
    def weight_specs(facts: ModelFacts) -> list[WeightSpec]: ...

    @staticmethod
    def attention_specs(facts: ModelFacts) -> tuple[AttentionSpec, ...]: ...

    def __call__(self, facts: ModelFacts, weights: Mapping[str, Weight]) -> Program: ...
