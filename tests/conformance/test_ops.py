"""Each op against its formula in torch, over odd sizes and empty batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from headrace.model.ops import AttentionSpec, Backend
from tests.conformance.batches import attend_in_chunks, make_sequence, normal, step_inputs, stored

ROWS = (0, 1, 2, 7, 33)
MATRICES = ((48, 64), (96, 33), (77, 33), (1, 5), (47, 1), (145, 96))


def close(actual: object, expected: torch.Tensor) -> None:
    expected = expected.float()
    actual = torch.from_numpy(np.ascontiguousarray(actual))
    assert actual.dtype == torch.float32
    assert actual.shape == expected.shape
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6 * max(largest, 1e-3))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", MATRICES)
def test_linear_and_linear_residual(backend: Backend, rows: int, shape: tuple[int, int]) -> None:
    x, weight, residual = normal(1, rows, shape[1]), normal(2, *shape), normal(3, rows, shape[0])
    packed = backend.memory.pack_matrix([stored(weight)])
    product = torch.from_numpy(x).double() @ torch.from_numpy(weight).double().T
    close(backend.ops.linear(x, packed), product)
    close(backend.ops.linear_residual(x, packed, residual), product + torch.from_numpy(residual))


def test_a_matrix_of_several_parts_has_their_rows_in_order(backend: Backend) -> None:
    parts = [normal(1, 50, 24), normal(2, 3, 24), normal(3, 48, 24)]
    x = normal(4, 5, 24)
    packed = backend.memory.pack_matrix([stored(part) for part in parts])
    close(
        backend.ops.linear(x, packed), functional.linear(torch.from_numpy(x), torch.from_numpy(np.concatenate(parts)))
    )


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inner", "width"), [(48, 32), (50, 33), (1536, 576), (3, 2)])
def test_gated_mlp(backend: Backend, rows: int, inner: int, width: int) -> None:
    x, gate, up = normal(1, rows, width), normal(2, inner, width), normal(3, inner, width)
    packed = backend.memory.pack_gated(stored(gate), stored(up))
    double = torch.from_numpy(x).double()
    expected = functional.silu(double @ torch.from_numpy(gate).double().T) * (double @ torch.from_numpy(up).double().T)
    close(backend.ops.gated_mlp(x, packed, "silu"), expected)


def test_silu_of_very_negative_gates_is_zero(backend: Backend) -> None:
    one = np.ones((1, 1), np.float32)
    packed = backend.memory.pack_gated(stored(-1000 * one), stored(one))
    assert np.asarray(backend.ops.gated_mlp(one, packed, "silu")).tolist() == [[0.0]]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("width", "run"), [(64, 64), (33, 33), (96, 32), (5, 1)])
def test_rms_norm_of_rows_and_of_heads(backend: Backend, rows: int, width: int, run: int) -> None:
    x, weight = normal(1, rows, width), normal(2, run)
    packed = backend.memory.pack_vector(stored(weight))
    expected = functional.rms_norm(
        torch.from_numpy(x).view(rows, width // run, run), (run,), torch.from_numpy(weight), 1e-5
    )
    close(backend.ops.rms_norm(x, packed, 1e-5), expected.view(rows, width))


@pytest.mark.parametrize("rows", ROWS)
def test_embed_split_and_take_rows(backend: Backend, rows: int) -> None:
    table = normal(1, 50, 12)
    ids = np.random.default_rng(2).integers(0, 50, rows).astype(np.int32)
    x = backend.ops.embed(ids, backend.memory.pack_matrix([stored(table)]))
    close(x, functional.embedding(torch.from_numpy(ids), torch.from_numpy(table)))
    for piece, expected in zip(backend.ops.split(x, (5, 4, 3)), np.split(table[ids], (5, 9), axis=1), strict=True):
        close(piece, torch.from_numpy(expected))
    chosen = np.arange(rows, dtype=np.int32)[::-2]
    close(backend.ops.take_rows(x, chosen), torch.from_numpy(table[ids][chosen]))


@pytest.mark.parametrize("dim", [2, 16, 80])
@pytest.mark.parametrize("heads", [1, 3])
def test_rope_rotates_halves(backend: Backend, dim: int, heads: int) -> None:
    positions = [range(5, 9), range(100, 101), range(3)]
    rows = sum(len(request) for request in positions)
    backend.memory.allocate_kv_cache([AttentionSpec(0, heads, heads, dim, 1.0)], 24, 16)
    step = backend.begin_step(step_inputs(positions, np.arange(24, dtype=np.int32).reshape(3, 8), 16))
    x = normal(1, rows, heads * dim)
    table = backend.memory.rope_table(10000.0, dim, 128)
    flat = torch.tensor([position for request in positions for position in request], dtype=torch.double)
    angles = flat[:, None] * 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.double) / dim)
    cos, sin = angles.cos().repeat(1, 2)[:, None], angles.sin().repeat(1, 2)[:, None]
    head = torch.from_numpy(x).double().view(rows, heads, dim)
    rotated_half = torch.cat([-head[..., dim // 2 :], head[..., : dim // 2]], dim=-1)
    close(backend.ops.rope(x, table, step), (head * cos + rotated_half * sin).view(rows, -1))


SPECS = [
    AttentionSpec(0, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, scale=dim**-0.5)
    for heads, kv_heads, dim in ((9, 3, 64), (4, 4, 32), (2, 1, 80), (3, 1, 128), (1, 1, 6))
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("block_size", [1, 7, 16, 64, 128])
def test_paged_attention_mixes_prefill_and_decode(backend: Backend, spec: AttentionSpec, block_size: int) -> None:
    lengths, chunks = (70, 1, 130, 20), (64, 1, 33, 1)
    sequences = [make_sequence(10 * i, length, spec) for i, length in enumerate(lengths)]
    results = attend_in_chunks(backend, spec, sequences, chunks, block_size=block_size)
    for sequence, result in zip(sequences, results, strict=True):
        q, k, v = (
            torch.from_numpy(array).double().view(len(array), heads, spec.head_dim).transpose(0, 1)
            for array, heads in (
                (sequence.q, spec.num_heads),
                (sequence.k, spec.num_kv_heads),
                (sequence.v, spec.num_kv_heads),
            )
        )
        expected = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=spec.scale, enable_gqa=True)
        close(result, expected.transpose(0, 1).reshape(len(result), -1))


def test_an_empty_step(backend: Backend) -> None:
    spec = SPECS[0]
    backend.memory.allocate_kv_cache([spec], 4, 16)
    step = backend.begin_step(step_inputs([], np.zeros((0, 4), np.int32), 16))
    q, kv = np.zeros((0, 9 * 64), np.float32), np.zeros((0, 3 * 64), np.float32)
    assert np.asarray(backend.ops.paged_attention(q, kv, kv, spec, step)).shape == (0, 9 * 64)
    assert np.asarray(backend.ops.rope(q, backend.memory.rope_table(1e4, 64, 8), step)).shape == (0, 9 * 64)
