"""Each op against its formula in torch, in float64, over odd sizes and empty batches.

Matrices, keys and values are rounded in the formula as the implementation rounds them, and so are rows where it rounds
those. What is left is the order of float32 sums, and the bounds are the same for all: 2e-6 of the largest element, some
30 units in its last place. Attention with rounded rows also rounds its weights to 8 bits, inside: 2^-8 of the largest
value.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from headrace.model.ops import ActivationName, AttentionSpec, Backend, StoredTensor
from tests.conformance.batches import (
    Request,
    allocate_poisoned,
    attend_in_chunks,
    attention_step,
    make_sequence,
    normal,
    step_inputs,
    stored,
    write_cache,
)
from tests.conformance.implementations import IMPLEMENTATIONS, OTHER_CACHES, QUANTIZED_CACHES, Implementation

Float32 = NDArray[np.float32]

ROWS = (0, 1, 2, 7, 33)
MATRICES = ((48, 64), (96, 33), (77, 33), (1, 5), (47, 1), (145, 96))
BOUND = 2e-6
ROUNDED_WEIGHTS_BOUND = 2.0**-8
ACTIVATIONS: dict[ActivationName, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def double(values: Float32) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).double()


def close(actual: object, expected: torch.Tensor, *, bound: float = BOUND, largest: float | None = None) -> None:
    expected = expected.float()
    actual = torch.from_numpy(np.ascontiguousarray(actual))
    assert actual.dtype == torch.float32
    assert actual.shape == expected.shape
    if largest is None:
        largest = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(actual, expected, rtol=0, atol=bound * max(largest, 1e-3))


# ---- products --------------------------------------------------------------------------------------------------------


def check_linear(implementation: Implementation, backend: Backend, rows: int, shape: tuple[int, int]) -> None:
    x, weight, residual = normal(1, rows, shape[1]), normal(2, *shape), normal(3, rows, shape[0])
    product = double(implementation.as_multiplied(x)) @ double(implementation.as_stored(weight)).T
    packed = backend.memory.pack_matrix([stored(weight)])
    close(backend.ops.linear(x, packed), product)
    close(backend.ops.linear_residual(x, packed, residual), product + double(residual))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", MATRICES)
def test_linear_and_linear_residual(
    implementation: Implementation, backend: Backend, rows: int, shape: tuple[int, int]
) -> None:
    check_linear(implementation, backend, rows, shape)


@pytest.mark.parametrize(("rows", "shape"), [(4096, (77, 33)), (5, (32001, 33)), (1, (33, 4099))])
def test_many_rows_a_vocabulary_and_a_long_sum(
    implementation: Implementation, backend: Backend, rows: int, shape: tuple[int, int]
) -> None:
    check_linear(implementation, backend, rows, shape)


def test_a_matrix_of_several_parts_has_their_rows_and_biases_in_order(
    implementation: Implementation, backend: Backend
) -> None:
    sizes = (50, 3, 48)
    parts = [normal(seed, size, 24) for seed, size in enumerate(sizes)]
    biases = [normal(10 + seed, size) for seed, size in enumerate(sizes)]
    x, residual = normal(4, 5, 24), normal(5, 5, sum(sizes))
    matrix = implementation.as_stored(np.concatenate(parts))
    product = double(implementation.as_multiplied(x)) @ double(matrix).T
    packed = backend.memory.pack_matrix([stored(part) for part in parts])
    close(backend.ops.linear(x, packed), product)
    product += double(np.concatenate(biases))
    packed = backend.memory.pack_matrix([stored(part) for part in parts], [stored(bias) for bias in biases])
    close(backend.ops.linear(x, packed), product)
    close(backend.ops.linear_residual(x, packed, residual), product + double(residual))


@pytest.mark.parametrize(
    ("rows", "inner", "width"),
    [(33, 1536, 576), *((rows, *shape) for rows in ROWS for shape in ((48, 32), (50, 33), (3, 2)))],
)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_mlp(
    implementation: Implementation, backend: Backend, activation: ActivationName, rows: int, inner: int, width: int
) -> None:
    x, gate, up = normal(1, rows, width), normal(2, inner, width), normal(3, inner, width)
    packed = backend.memory.pack_gated(stored(gate), stored(up))
    gate, up = implementation.as_stored(gate), implementation.as_stored(up)
    wide = double(implementation.as_multiplied(x))
    expected = ACTIVATIONS[activation](wide @ double(gate).T) * (wide @ double(up).T)
    close(backend.ops.gated_mlp(x, packed, activation), expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_over_their_whole_range(backend: Backend, activation: ActivationName) -> None:
    """Far below 0 they are small, and still right to five digits of their own."""
    gates = np.arange(-80, 80, dtype=np.float32)[:, None] / 16  # bfloat16 holds them too
    packed = backend.memory.pack_gated(stored(gates), stored(np.ones_like(gates)))
    (actual,) = np.asarray(backend.ops.gated_mlp(np.ones((1, 1), np.float32), packed, activation))
    np.testing.assert_allclose(actual, ACTIVATIONS[activation](double(gates[:, 0])), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_of_very_negative_gates_is_zero(backend: Backend, activation: ActivationName) -> None:
    one = np.ones((1, 1), np.float32)
    packed = backend.memory.pack_gated(stored(-1000 * one), stored(one))
    assert np.asarray(backend.ops.gated_mlp(one, packed, activation)).tolist() == [[0.0]]


# ---- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("width", "run"), [(64, 64), (33, 33), (96, 32), (5, 1)])
def test_rms_norm_of_rows_and_of_heads(backend: Backend, rows: int, width: int, run: int) -> None:
    x, weight, residual = normal(1, rows, width), normal(2, run), normal(3, rows, width)
    packed = backend.memory.pack_vector(stored(weight))
    expected = functional.rms_norm(double(x).view(rows, width // run, run), (run,), double(weight), 1e-5)
    expected = expected.view(rows, width)
    close(backend.ops.rms_norm(x, packed, 1e-5), expected)
    close(backend.ops.rms_residual(x, packed, 1e-5, residual), expected + double(residual))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 33, 64])
def test_scale_and_softcap(backend: Backend, rows: int, width: int) -> None:
    x = 20 * normal(1, rows, width)
    close(backend.ops.scale(x, 0.3), 0.3 * double(x))
    close(backend.ops.softcap(x, 30.0), 30 * torch.tanh(double(x) / 30))


def test_a_softcap_keeps_what_is_small(backend: Backend) -> None:
    """Logits that differ by little must not become equal on their way through."""
    x = np.array([[0.0, 1e-20, -1e-6, 3e-5, 0.02, -1.0, 18.7, 18.8, -40.0, 1e9]], np.float32)
    actual = np.asarray(backend.ops.softcap(x, 30.0))
    np.testing.assert_allclose(actual, 30 * torch.tanh(double(x) / 30), rtol=3e-7)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("vocab", [50, 32001])
def test_embed_split_and_take_rows(implementation: Implementation, backend: Backend, rows: int, vocab: int) -> None:
    table = normal(1, vocab, 12)
    ids = np.random.default_rng(2).integers(0, vocab, rows).astype(np.int32)
    ids[-1:] = vocab - 1
    x = np.asarray(backend.ops.embed(ids, backend.memory.pack_matrix([stored(table)])))
    expected = implementation.as_stored(table)[ids]
    assert x.tobytes() == expected.tobytes()
    for piece, columns in zip(backend.ops.split(x, (5, 4, 3)), np.split(expected, (5, 9), axis=1), strict=True):
        assert np.asarray(piece).tolist() == columns.tolist()
    chosen = np.arange(rows, dtype=np.int32)[::-2]
    assert np.asarray(backend.ops.take_rows(x, chosen)).tolist() == expected[chosen].tolist()


FLOAT16_BYTES = {  # the high ones, of each block
    "F16": [1], "Q4_0": [1], "Q4_1": [1, 3], "Q5_0": [1], "Q5_1": [1, 3], "Q8_0": [1], "Q4_K": [1, 3], "Q5_K": [1, 3],
    "Q6_K": [209],
}  # fmt: skip


@pytest.mark.parametrize("name", FLOAT16_BYTES)
def test_packed_blocks_are_what_they_are_stored_as(implementation: Implementation, backend: Backend, name: str) -> None:
    rows, width = 37, 512
    kind = gguf.GGMLQuantizationType[name]
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(1).integers(0, 256, (rows * width // block, block_bytes), np.uint8)
    blocks[:, FLOAT16_BYTES[name]] &= 0xBF  # finite ones, below 2
    expected = gguf.dequantize(blocks.reshape(rows, -1), kind).astype(np.float32)
    tensor = StoredTensor("t", name, (rows, width), blocks.reshape(-1).data)
    x = backend.ops.embed(np.arange(rows, dtype=np.int32), backend.memory.pack_matrix([tensor]))
    np.testing.assert_array_equal(np.asarray(x), implementation.as_stored(expected))


@pytest.mark.parametrize("width", [1, 255, 256, 257, 515])
def test_packed_parts_of_any_width(implementation: Implementation, backend: Backend, width: int) -> None:
    parts = [normal(seed, rows, width) for seed, rows in enumerate((3, 40, 16))]
    expected = implementation.as_stored(np.concatenate(parts))
    ids = np.arange(len(expected), dtype=np.int32)
    x = backend.ops.embed(ids, backend.memory.pack_matrix([stored(part) for part in parts]))
    assert np.asarray(x).tobytes() == expected.tobytes()
    words = [torch.from_numpy(part).bfloat16() for part in parts]
    expected = torch.cat(words).float().numpy()
    data = [part.view(torch.uint8).numpy().reshape(-1).data for part in words]
    tensors = [StoredTensor("t", "BF16", part.shape, bits) for part, bits in zip(parts, data, strict=True)]
    x = backend.ops.embed(ids, backend.memory.pack_matrix(tensors))
    assert np.asarray(x).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dim", [2, 16, 80])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("factor", [1.0, 1.4])
def test_rope_rotates_halves(backend: Backend, dim: int, heads: int, factor: float) -> None:
    positions = [range(5, 9), range(100, 101), range(3)]
    rows = sum(len(request) for request in positions)
    backend.memory.allocate_kv_cache([AttentionSpec(0, heads, heads, dim, 1.0)], 24, 16)
    step = backend.begin_step(step_inputs(positions, np.arange(24, dtype=np.int32).reshape(3, 8), 16))
    x = normal(1, rows, heads * dim)
    frequencies = 10000.0 ** (-np.arange(0, dim, 2) / dim)
    table = backend.memory.rope_table(frequencies, 128, factor)
    flat = torch.tensor([position for request in positions for position in request], dtype=torch.double)
    angles = flat[:, None] * torch.from_numpy(frequencies)
    cos, sin = angles.cos().repeat(1, 2)[:, None], angles.sin().repeat(1, 2)[:, None]
    head = double(x).view(rows, heads, dim)
    rotated_half = torch.cat([-head[..., dim // 2 :], head[..., : dim // 2]], dim=-1)
    close(backend.ops.rope(x, table, step), factor * (head * cos + rotated_half * sin).view(rows, -1))


# ---- attention -------------------------------------------------------------------------------------------------------

SPECS = [
    AttentionSpec(0, heads, kv_heads, dim, dim**-0.5, window=window, softcap=softcap)
    for heads, kv_heads, dim, window, softcap in (
        (9, 3, 64, None, None),
        (4, 4, 32, None, None),
        (2, 1, 80, None, None),
        (3, 1, 128, None, None),
        (1, 1, 6, None, None),
        (9, 3, 64, 20, None),
        (4, 4, 32, 1, None),
        (1, 1, 80, 90, 2.0),
        (3, 1, 33, None, 5.0),
    )
]


def attend(
    implementation: Implementation, spec: AttentionSpec, sequence: Request, rows: range | None = None
) -> torch.Tensor:
    """The formula for the rows (all, unless said otherwise) of a whole sequence: `[rows, num_heads * head_dim]`."""
    rows = range(len(sequence.q)) if rows is None else rows
    scaled = implementation.as_multiplied(sequence.q * np.float32(spec.scale))[rows.start : rows.stop]
    q = double(scaled).view(len(rows), spec.num_kv_heads, -1, spec.head_dim)
    k, v = (
        implementation.as_cached(torch.from_numpy(array).view(len(array), spec.num_kv_heads, spec.head_dim))
        for array in (sequence.k, sequence.v)
    )
    scores = torch.einsum("rhgd,phd->rhgp", q, k)
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    own, other = torch.tensor(rows)[:, None], torch.arange(len(k))[None]
    hidden = (other > own) | (other <= own - (spec.window or len(k)))
    scores.masked_fill_(hidden[:, None, None], -torch.inf)
    return torch.einsum("rhgp,phd->rhgd", scores.softmax(-1), v).reshape(len(rows), -1)


def close_attention(
    implementation: Implementation, spec: AttentionSpec, sequence: Request, actual: object, rows: range | None = None
) -> None:
    bound = ROUNDED_WEIGHTS_BOUND if implementation.rounds_rows else BOUND
    close(actual, attend(implementation, spec, sequence, rows), bound=bound, largest=float(np.abs(sequence.v).max()))


with_every_cache = pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, *OTHER_CACHES], ids=str)
with_quantized_caches = pytest.mark.parametrize("implementation", QUANTIZED_CACHES, ids=str)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize(
    ("implementation", "block_size"), [*product(IMPLEMENTATIONS, (1, 7, 16)), *product(OTHER_CACHES, (7, 16))], ids=str
)
def test_paged_attention_mixes_prefill_and_decode(
    implementation: Implementation, backend: Backend, spec: AttentionSpec, block_size: int
) -> None:
    lengths, chunks = (70, 1, 130, 20), (64, 1, 33, 1)
    sequences = [make_sequence(10 * i, length, spec) for i, length in enumerate(lengths)]
    results = attend_in_chunks(backend, spec, sequences, chunks, block_size=block_size)
    for sequence, result in zip(sequences, results, strict=True):
        close_attention(implementation, spec, sequence, result)


@with_every_cache
@pytest.mark.parametrize("window", [None, 1, 3, 100, 256, 300])
@pytest.mark.parametrize("heads", [1, 5])
def test_rows_that_begin_and_end_to_see_a_split_side_by_side(
    implementation: Implementation, backend: Backend, heads: int, window: int | None
) -> None:
    """Kernels compute several rows at once, of which some see nothing of what the others see."""
    spec = AttentionSpec(0, heads, 1, 16, 0.25, window=window)
    sequence = make_sequence(1, 600, spec)
    (result,) = attend_in_chunks(backend, spec, [sequence], [599])
    close_attention(implementation, spec, sequence, result)


LONG = 32_700
LONG_SPECS = [
    AttentionSpec(0, 2, 1, 80, 80**-0.5, window=window, softcap=softcap)
    for window, softcap in ((None, None), (4096, 3.0))
]


@with_every_cache
@pytest.mark.parametrize("spec", LONG_SPECS, ids=str)
def test_long_contexts(implementation: Implementation, spec: AttentionSpec) -> None:
    """Decode, whose splits go to all threads, and a chunk of a prompt, beside a short request."""
    sequence, short = make_sequence(1, LONG, spec), make_sequence(2, 40, spec)
    sequence.q[:] *= 3  # so that few of so many positions matter
    backend = implementation.make(num_threads=3)
    with backend.running():
        tables = allocate_poisoned(backend, spec, [LONG, 40], block_size=16)
        for request, table in zip((sequence, short), tables, strict=True):
            write_cache(backend, spec, request, table, block_size=16)
        for row in (0, 255, 256, 4095, 20_000, LONG - 1):
            rows = range(row, row + 1)
            (result,) = attention_step(backend, spec, [sequence], [rows], tables[:1], block_size=16)
            close_attention(implementation, spec, sequence, result, rows)
        for ranges in ((range(LONG - 20, LONG), range(39, 40)), (range(16_000, 16_001), range(30, 40))):
            results = attention_step(backend, spec, [sequence, short], ranges, tables, block_size=16)
            for request, rows, result in zip((sequence, short), ranges, results, strict=True):
                close_attention(implementation, spec, request, result, rows)
    backend.close()


def attend_one_by_one(backend: Backend, k: Float32, v: Float32) -> Float32:
    """Of each token `[n, head_dim]`, alone in its context: its value as the cache has it."""
    spec = AttentionSpec(0, 1, 1, k.shape[1], 1.0, window=1)
    (result,) = attend_in_chunks(backend, spec, [Request(np.zeros_like(k), k, v)], [7])
    return result


@with_quantized_caches
def test_a_cache_of_8_bits_holds_every_number_of_its_type(implementation: Implementation, backend: Backend) -> None:
    """And rounds as torch does what is between two. Scales are powers of two, so that nothing else is rounded."""
    codes = torch.arange(256, dtype=torch.uint8)
    if implementation.kv_cache_dtype == "int8":
        numbers = (codes.double() - 128)[1:]
    else:
        numbers = codes.view(torch.float8_e4m3fn).double()
        numbers = numbers[numbers.isfinite()].sort().values
    between = (numbers[:-1] + numbers[1:]) / 2  # ties
    above, below = (torch.nextafter(between.float(), torch.tensor(limit)).double() for limit in (1e9, -1e9))
    rows = [piece for values in (numbers, between, above, below) for piece in values.split(79)]
    largest = float(numbers.max())
    v = torch.stack([functional.pad(row, (0, 80 - len(row)), value=largest) for row in rows])
    v *= 2.0 ** torch.arange(-3, len(v) - 3)[:, None]
    result = attend_one_by_one(backend, np.zeros(v.shape, np.float32), v.float().numpy())
    expected = implementation.as_cached(v.float())
    assert torch.equal(expected[: len(numbers.split(79))], v[: len(numbers.split(79))])
    assert torch.equal(torch.from_numpy(result).double(), expected)


@with_quantized_caches
def test_heads_of_extreme_size_in_a_cache_of_8_bits(implementation: Implementation, backend: Backend) -> None:
    """Zeros, the smallest and the largest floats: a scale too small for a float32 counts as zero."""
    v = normal(1, 40, 20)
    v *= np.array([0, 1e-45, 1e-38, 1e-36, 1e-30, 1, 1e30, 8e37] * 5, np.float32)[:, None]
    result = attend_one_by_one(backend, v, v)
    bound = ROUNDED_WEIGHTS_BOUND if implementation.rounds_rows else BOUND
    for row, expected in zip(result, implementation.as_cached(torch.from_numpy(v)), strict=True):
        largest = float(expected.abs().max())
        assert np.all(np.abs(row - expected.numpy()) <= bound * max(largest, 1e-37))


@with_quantized_caches
def test_what_is_not_finite_spoils_its_own_head_and_no_other(backend: Backend) -> None:
    spec = AttentionSpec(0, 2, 2, 33, 0.2)
    healthy, sick = make_sequence(1, 40, spec), make_sequence(1, 40, spec)
    sick.k[20, 3], sick.v[30, 3] = np.inf, np.nan  # of the first head
    expected, found = (attend_in_chunks(backend, spec, [each], [11])[0] for each in (healthy, sick))
    assert np.isnan(found[20:, :33]).all()
    assert np.array_equal(found[:20], expected[:20])
    assert np.array_equal(found[:, 33:], expected[:, 33:])


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[7]], ids=str)
def test_an_empty_step(backend: Backend, spec: AttentionSpec) -> None:
    backend.memory.allocate_kv_cache([spec], 4, 16)
    step = backend.begin_step(step_inputs([], np.zeros((0, 4), np.int32), 16))
    q, kv = (np.zeros((0, heads * spec.head_dim), np.float32) for heads in (spec.num_heads, spec.num_kv_heads))
    assert np.asarray(backend.ops.paged_attention(q, kv, kv, spec, step)).shape == q.shape
    table = backend.memory.rope_table(np.ones(spec.head_dim // 2), 8)
    assert np.asarray(backend.ops.rope(q, table, step)).shape == q.shape
