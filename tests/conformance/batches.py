"""Stored tensors and steps for tests of ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.model.ops import AttentionSpec, Backend, StepInputs, StoredTensor

Float32 = NDArray[np.float32]


def normal(seed: int, *shape: int) -> Float32:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def stored(values: Float32, name: str = "weight") -> StoredTensor:
    return StoredTensor(name, "F32", values.shape, np.ascontiguousarray(values).data.cast("B"))


def step_inputs(
    positions: Sequence[range], block_tables: NDArray[np.int32], block_size: int, sample_rows: Sequence[int] = ()
) -> StepInputs:
    """One request for each range of positions, which are those of its new tokens."""
    lengths = [len(request) for request in positions]
    flat = np.array([position for request in positions for position in request], np.int32)
    rows = np.repeat(np.arange(len(positions)), lengths)
    return StepInputs(
        token_ids=flat.copy(),
        positions=flat,
        slots=(block_tables[rows, flat // block_size] * block_size + flat % block_size).astype(np.int32),
        query_starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        context_lens=np.array([request.stop for request in positions], np.int32),
        block_tables=block_tables,
        sample_rows=np.array(sample_rows, np.int32),
    )


@dataclass(frozen=True)
class Request:
    """The queries, keys and values of a whole request."""

    q: Float32  # [length, num_heads * head_dim]
    k: Float32  # [length, num_kv_heads * head_dim]
    v: Float32


def make_sequence(seed: int, length: int, spec: AttentionSpec) -> Request:
    kv_width = spec.num_kv_heads * spec.head_dim
    return Request(
        normal(seed, length, spec.num_heads * spec.head_dim),
        normal(seed + 1, length, kv_width),
        normal(seed + 2, length, kv_width),
    )


def attend_in_chunks(
    backend: Backend,
    spec: AttentionSpec,
    sequences: Sequence[Request],
    chunks: Sequence[int],
    *,
    block_size: int = 16,
    seed: int = 0,
) -> list[Float32]:
    """Attention over whole sequences, request i in chunks of chunks[i] rows, all together, in scattered blocks.

    What the blocks hold before is not a number: nothing may leak from it.
    """
    longest = max(len(sequence.q) for sequence in sequences)
    blocks_each = -(-longest // block_size)
    num_blocks = blocks_each * len(sequences)
    order = np.random.default_rng(seed).permutation(num_blocks).astype(np.int32)
    tables = order.reshape(len(sequences), blocks_each)
    backend.memory.allocate_kv_cache([spec], num_blocks, block_size)
    poison(backend, spec, num_blocks * block_size)
    done = [0] * len(sequences)
    outputs: list[list[Float32]] = [[] for _ in sequences]
    while active := [i for i, sequence in enumerate(sequences) if done[i] < len(sequence.q)]:
        ranges = [range(done[i], min(done[i] + chunks[i], len(sequences[i].q))) for i in active]
        step = backend.begin_step(step_inputs(ranges, tables[active], block_size))
        q, k, v = (
            np.concatenate(
                [getattr(sequences[i], name)[rows.start : rows.stop] for i, rows in zip(active, ranges, strict=True)]
            )
            for name in "qkv"
        )
        result = np.asarray(backend.ops.paged_attention(q, k, v, spec, step))
        start = 0
        for i, rows in zip(active, ranges, strict=True):
            outputs[i].append(result[start : start + len(rows)])
            start += len(rows)
            done[i] = rows.stop
    return [np.concatenate(pieces) for pieces in outputs]


def poison(backend: Backend, spec: AttentionSpec, num_slots: int) -> None:
    """Fill the cache of the layer with NaN, through the op itself."""
    width = spec.num_kv_heads * spec.head_dim
    nan = np.full((num_slots, width), np.nan, np.float32)
    slots = np.arange(num_slots, dtype=np.int32)
    inputs = StepInputs(
        token_ids=slots,
        positions=slots,
        slots=slots,
        query_starts=np.array([0], np.int32),
        context_lens=np.array([], np.int32),
        block_tables=np.zeros((0, 1), np.int32),
        sample_rows=np.array([], np.int32),
    )
    q = np.zeros((num_slots, spec.num_heads * spec.head_dim), np.float32)
    backend.ops.paged_attention(q, nan, nan, spec, backend.begin_step(inputs))
