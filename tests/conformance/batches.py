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
    """Attention over whole sequences, request i in chunks of chunks[i] rows, all together, in scattered blocks."""
    tables = allocate_poisoned(backend, spec, [len(sequence.q) for sequence in sequences], block_size, seed)
    done = [0] * len(sequences)
    outputs: list[list[Float32]] = [[] for _ in sequences]
    while active := [i for i, sequence in enumerate(sequences) if done[i] < len(sequence.q)]:
        ranges = [range(done[i], min(done[i] + chunks[i], len(sequences[i].q))) for i in active]
        results = attention_step(
            backend, spec, [sequences[i] for i in active], ranges, tables[active], block_size=block_size
        )
        for i, rows, result in zip(active, ranges, results, strict=True):
            outputs[i].append(result)
            done[i] = rows.stop
    return [np.concatenate(pieces) for pieces in outputs]


def attention_step(
    backend: Backend,
    spec: AttentionSpec,
    sequences: Sequence[Request],
    ranges: Sequence[range],
    tables: NDArray[np.int32],
    *,
    block_size: int,
) -> list[Float32]:
    """One step with the rows `ranges[i]` of request i: the results of each."""
    step = backend.begin_step(step_inputs(ranges, tables, block_size))
    q, k, v = (
        np.concatenate(
            [getattr(sequence, name)[rows.start : rows.stop] for sequence, rows in zip(sequences, ranges, strict=True)]
        )
        for name in "qkv"
    )
    result = np.asarray(backend.ops.paged_attention(q, k, v, spec, step))
    return np.split(result, np.cumsum([len(rows) for rows in ranges])[:-1])


def allocate_poisoned(
    backend: Backend, spec: AttentionSpec, lengths: Sequence[int], block_size: int, seed: int = 0
) -> NDArray[np.int32]:
    """A cache for requests of these lengths, and their block tables, in which blocks are scattered.

    What the blocks hold before is not a number: nothing may leak from it.
    """
    blocks_each = -(-max(lengths) // block_size)
    num_blocks = blocks_each * len(lengths)
    backend.memory.allocate_kv_cache([spec], num_blocks, block_size)
    nan = np.full((num_blocks * block_size, spec.num_kv_heads * spec.head_dim), np.nan, np.float32)
    _write_slots(backend, spec, nan, nan, np.arange(len(nan), dtype=np.int32))
    order = np.random.default_rng(seed).permutation(num_blocks).astype(np.int32)
    return order.reshape(len(lengths), blocks_each)


def write_cache(
    backend: Backend, spec: AttentionSpec, sequence: Request, table: NDArray[np.int32], *, block_size: int
) -> None:
    """All keys and values of a request, without any attention to them."""
    positions = np.arange(len(sequence.k))
    slots = table[positions // block_size] * block_size + positions % block_size
    _write_slots(backend, spec, sequence.k, sequence.v, slots.astype(np.int32))


def _write_slots(backend: Backend, spec: AttentionSpec, k: Float32, v: Float32, slots: NDArray[np.int32]) -> None:
    """Through the op itself, in a step without requests."""
    inputs = StepInputs(
        token_ids=slots,
        positions=slots,
        slots=slots,
        query_starts=np.array([0], np.int32),
        context_lens=np.array([], np.int32),
        block_tables=np.zeros((0, 1), np.int32),
        sample_rows=np.array([], np.int32),
    )
    q = np.zeros((len(slots), spec.num_heads * spec.head_dim), np.float32)
    backend.ops.paged_attention(q, k, v, spec, backend.begin_step(inputs))
