"""A row's bits do not depend on the rows around it, on their number, on their order, on chunks, threads or blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.model.ops import AttentionSpec, Backend
from tests.conformance.batches import (
    Request,
    allocate_poisoned,
    attend_in_chunks,
    attention_step,
    make_sequence,
    normal,
    stored,
)
from tests.conformance.implementations import Implementation

Float32 = NDArray[np.float32]

NUM_ROWS = 97
# the demo model's shapes, and odd ones: rows that are no multiple of a vector begin at any alignment
MATRICES = ((960, 576), (576, 1536), (3072, 576), (240, 81), (77, 33), (191, 97), (50, 1), (1, 63))


def assert_rows_are_alone(op: Callable[[NDArray[np.float32]], object], x: NDArray[np.float32]) -> None:
    """op(x)[rows] is op(x[rows]), bit for bit, for single rows, slices and permutations."""
    whole = np.asarray(op(x))
    generator = np.random.default_rng(7)
    selections = [np.array([row]) for row in (0, 1, 2, 3, 11, 50, NUM_ROWS - 1)]
    selections += [np.arange(start, stop) for start, stop in ((0, 2), (1, 5), (3, 19), (7, 71), (64, 97))]
    selections += [generator.permutation(NUM_ROWS), generator.permutation(NUM_ROWS)[:16]]
    for rows in selections:
        alone = np.asarray(op(x[rows]))
        assert alone.tobytes() == np.ascontiguousarray(whole[rows]).tobytes(), rows


@pytest.mark.parametrize("shape", MATRICES)
def test_linear(backend: Backend, shape: tuple[int, int]) -> None:
    packed = backend.memory.pack_matrix([stored(normal(1, *shape))], [stored(normal(3, shape[0]))])
    x = normal(2, NUM_ROWS, shape[1])
    assert_rows_are_alone(lambda rows: backend.ops.linear(rows, packed), x)
    assert_rows_are_alone(lambda rows: backend.ops.linear_residual(rows, packed, rows[:, :1].repeat(shape[0], 1)), x)


@pytest.mark.parametrize(("inner", "width"), [(1536, 576), (131, 97), (48, 33), (5, 3)])
def test_gated_mlp(backend: Backend, inner: int, width: int) -> None:
    packed = backend.memory.pack_gated(stored(normal(1, inner, width)), stored(normal(2, inner, width)))
    x = normal(3, NUM_ROWS, width)
    assert_rows_are_alone(lambda rows: backend.ops.gated_mlp(rows, packed, "silu"), x)
    assert_rows_are_alone(lambda rows: backend.ops.gated_mlp(rows, packed, "gelu_tanh"), x)


@pytest.mark.parametrize(("width", "run"), [(576, 576), (97, 97), (99, 33), (1, 1), (9001, 9001)])
def test_rms_norm(backend: Backend, width: int, run: int) -> None:
    weight = backend.memory.pack_vector(stored(normal(1, run)))
    x = normal(2, NUM_ROWS, width)
    assert_rows_are_alone(lambda rows: backend.ops.rms_norm(rows, weight, 1e-5), x)
    assert_rows_are_alone(lambda rows: backend.ops.rms_residual(rows, weight, 1e-5, rows), x)


@pytest.mark.parametrize("width", [1, 33, 576])
def test_scale_and_softcap(backend: Backend, width: int) -> None:
    x = 30 * normal(1, NUM_ROWS, width)
    assert_rows_are_alone(lambda rows: backend.ops.scale(rows, 0.3), x)
    assert_rows_are_alone(lambda rows: backend.ops.softcap(rows, 30.0), x)


SPECS = [
    AttentionSpec(0, 9, 3, 64, 0.125),
    AttentionSpec(0, 2, 1, 33, 0.2, softcap=4.0),
    AttentionSpec(0, 1, 1, 80, 0.1, window=50),
    AttentionSpec(0, 4, 2, 32, 0.2, window=130, softcap=4.0),
]


@pytest.mark.parametrize("num_threads", [1, 3, 5])
def test_threads_change_no_bit(implementation: Implementation, backend: Backend, num_threads: int) -> None:
    other = implementation.make(num_threads)
    weight, x = stored(normal(1, 3072, 576)), normal(2, 5, 576)
    lengths = (600, 40)

    def results(of: Backend) -> list[bytes]:
        packed = of.memory.pack_matrix([weight])
        products = [of.ops.linear(x, packed), of.ops.gated_mlp(x, of.memory.pack_gated(weight, weight), "silu")]
        attended = [
            rows
            for spec in SPECS
            for rows in decode_after_prefill(of, spec, [make_sequence(10 * i, n, spec) for i, n in enumerate(lengths)])
        ]
        return [np.asarray(array).tobytes() for array in products + attended]

    assert results(other) == results(backend)
    other.close()


def decode_after_prefill(of: Backend, spec: AttentionSpec, sequences: Sequence[Request]) -> list[Float32]:
    """The rows of a prompt, and then one token: a step whose splits are shared among threads."""
    tables = allocate_poisoned(of, spec, [len(sequence.q) for sequence in sequences], block_size=16)
    rows: list[Float32] = []
    prompts = [range(len(sequence.q) - 1) for sequence in sequences]
    for ranges in (prompts, [range(prompt.stop, prompt.stop + 1) for prompt in prompts]):
        rows += attention_step(of, spec, sequences, ranges, tables, block_size=16)
    return rows


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_attention_over_chunks_neighbours_and_blocks(backend: Backend, spec: AttentionSpec) -> None:
    lengths = (5, 130, 64, 260, 65)
    sequences = [make_sequence(10 * i, length, spec) for i, length in enumerate(lengths)]
    decoded = attend_in_chunks(backend, spec, sequences, [1] * 5)
    together = [
        attend_in_chunks(backend, spec, sequences, chunks, block_size=block_size, seed=block_size)
        for chunks, block_size in (
            ([64] * 5, 16),
            ([7, 1, 30, 259, 64], 16),
            ([300] * 5, 32),
            ([16, 16, 1, 16, 16], 48),
            ([30] * 5, 7),
            ([100] * 5, 128),
        )
    ]
    alone = [attend_in_chunks(backend, spec, [sequence], [17])[0] for sequence in sequences]
    for results in [*together, alone]:
        assert [result.tobytes() for result in results] == [result.tobytes() for result in decoded]
