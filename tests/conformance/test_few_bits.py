"""Products with matrices of few bits on every instruction set, and what loads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from headrace.backends.gguf_blocks import BLOCK_FORMATS, quantize
from headrace.backends.native.extension import ISA_VARIABLE, native
from headrace.errors import UnsupportedModelError
from headrace.model.ops import Backend, Precision, StoredTensor
from headrace.worker.backends import make_backend
from tests.conformance.few_bits import (
    LARGEST,
    mixed,
    multiplied_rows,
    random_tensor,
    rounded_rows,
    rounded_to_bytes,
    values_of,
)
from tests.conformance.implementations import IMPLEMENTATIONS

INSTRUCTION_SETS = sorted({one.instruction_set for one in IMPLEMENTATIONS if one.instruction_set})
ROWS = (0, 1, 2, 3, 5, 6, 7, 13, 16, 17, 33, 300)
ACTIVATIONS = ("none", *LARGEST)
WIDTH = 768
ERROR = 3e-6  # of the largest result: sums of up to 48 groups in float32

Make = Callable[..., Backend]


@pytest.fixture(params=INSTRUCTION_SETS, ids="native-{}".format)
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Backends with this instruction set."""
    monkeypatch.setenv(ISA_VARIABLE, request.param)
    made: list[Backend] = []

    def make(quantization: str, activations: str = "int8", num_threads: int = 2, dtype: str = "bfloat16") -> Backend:
        made.append(make_backend("native", num_threads, Precision(dtype, quantization, activations)))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def rows_of(count: int, width: int = WIDTH) -> np.ndarray:
    rows = np.random.default_rng(count).standard_normal((count, width)).astype(np.float32)
    rows[:, :64] *= np.float32(30)  # groups differ in size
    rows[count // 2 : count // 2 + 1] = 0
    return rows


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max(initial=0) <= ERROR * np.abs(expected).max(initial=1)


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("dtype", BLOCK_FORMATS)
def test_products(make: Make, dtype: str, activations: str) -> None:
    backend = make("stored", activations)
    group = BLOCK_FORMATS[dtype].group
    for num_outputs in (1, 33, 200):
        tensor = random_tensor(dtype, num_outputs, WIDTH)
        weight, values = backend.memory.pack_matrix([tensor]), values_of(tensor).astype(np.float64)
        for count in ROWS:
            x = rows_of(count)
            expected = multiplied_rows(x, group, activations, backend) @ values.T
            assert_near(backend.ops.linear(x, weight), expected)
            residual = rows_of(count, num_outputs)
            assert_near(backend.ops.linear_residual(x, weight, residual), expected + residual)


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("dtype", BLOCK_FORMATS)
def test_a_gated_product(make: Make, dtype: str, activations: str) -> None:
    backend = make("stored", activations)
    for inner in (16, 40):
        gate, up = (random_tensor(dtype, inner, WIDTH, seed) for seed in (1, 2))
        weight = backend.memory.pack_gated(gate, up)
        for count in (1, 7, 40):
            x = rows_of(count) / np.float32(100)
            rounded = multiplied_rows(x, BLOCK_FORMATS[dtype].group, activations, backend)
            gates, ups = (rounded @ values_of(part).astype(np.float64).T for part in (gate, up))
            assert_near(backend.ops.gated_mlp(x, weight, "silu"), gates / (1 + np.exp(-gates)) * ups)


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q5_1", "Q8_0"])
def test_rows_of_a_single_group(make: Make, dtype: str, activations: str) -> None:
    backend = make("stored", activations)
    tensor = random_tensor(dtype, 70, 32)
    weight, values = backend.memory.pack_matrix([tensor]), values_of(tensor).astype(np.float64)
    for count in ROWS:
        x = rows_of(count, 32)
        assert_near(backend.ops.linear(x, weight), multiplied_rows(x, 32, activations, backend) @ values.T)


@pytest.mark.parametrize("dtype", ["Q4_1", "Q5_0", "Q6_K"])
def test_with_rows_and_numbers_in_float32(make: Make, dtype: str) -> None:
    backend = make("stored", "none", dtype="float32")
    tensor = random_tensor(dtype, 33, WIDTH)
    weight, values = backend.memory.pack_matrix([tensor]), values_of(tensor).astype(np.float64)
    assert weight.whole.product == native.Type.float32
    for count in ROWS:
        assert_near(backend.ops.linear(rows_of(count), weight), rows_of(count).astype(np.float64) @ values.T)


@pytest.mark.parametrize(
    ("quantization", "activations", "product"),
    [
        ("int8", "none", "bfloat16"),
        ("int8", "int16", "uint8"),
        ("int4", "none", "bfloat16"),
        ("stored", "auto", None),
    ],
)
def test_what_rows_are_multiplied_by(make: Make, quantization: str, activations: str, product: str | None) -> None:
    backend = make(quantization, activations)
    if product is None:
        product = "bfloat16" if backend.instruction_set == "amx" else "uint8"
    weight = backend.memory.pack_matrix([random_tensor("Q8_0", 16, WIDTH)])
    assert weight.whole.product == native.Type[product]


@pytest.mark.parametrize("dtype", BLOCK_FORMATS)
def test_weights_are_kept_exactly(make: Make, dtype: str) -> None:
    backend = make("stored")
    tensor = random_tensor(dtype, 100, WIDTH)
    table = backend.memory.pack_matrix([tensor])
    ids = np.array([0, 99, 15, 16, 17, 64, 0], np.int32)
    assert backend.ops.embed(ids, table).tobytes() == values_of(tensor)[ids].tobytes()


def test_parts_in_different_types(make: Make) -> None:
    """As llama.cpp's mixtures have them; a bias belongs to its part."""
    backend = make("stored")
    parts = [random_tensor(dtype, rows, WIDTH) for dtype, rows in (("Q4_K", 48), ("Q4_K", 20), ("Q6_K", 33))]
    biases = [np.arange(part.shape[0], dtype=np.float32) for part in parts]
    stored = [StoredTensor("bias", "F32", bias.shape, bias.data.cast("B")) for bias in biases]
    weight = backend.memory.pack_matrix(parts, stored)
    assert len(weight.pieces) == 2
    for count in (1, 9):
        x = rows_of(count)
        products = [
            rounded_rows(x, BLOCK_FORMATS[part.dtype].group) @ values_of(part).astype(np.float64).T + bias
            for part, bias in zip(parts, biases, strict=True)
        ]
        assert_near(backend.ops.linear(x, weight), np.concatenate(products, axis=1))
    with pytest.raises(UnsupportedModelError, match="different types"):
        backend.ops.embed(np.zeros(1, np.int32), weight)
    gated = backend.memory.pack_gated(random_tensor("Q4_K", 32, WIDTH), random_tensor("Q6_K", 32, WIDTH))
    assert gated.whole.type == native.Type.bfloat16


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q5_1", "Q8_0", "Q6_K", "int8"])
def test_a_row_depends_on_itself_alone(make: Make, dtype: str, activations: str) -> None:
    """Whether it is multiplied on vectors or on tiles, beside few others or many."""
    tensor = random_tensor("F32" if dtype == "int8" else dtype, 120, WIDTH)
    x = rows_of(100)
    found = []
    for num_threads in (1, 2):
        backend = make("int8" if dtype == "int8" else "stored", activations, num_threads)
        weight = backend.memory.pack_matrix([tensor])
        found.append(backend.ops.linear(x, weight))
        for part in (slice(0, 1), slice(3, 5), slice(7, 10), slice(10, 17), slice(30, 46), slice(20, 84)):
            assert backend.ops.linear(x[part], weight).tobytes() == found[-1][part].tobytes()
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize(
    ("word", "activations", "bits", "group", "error"),
    [
        ("int8", "int16", 8, 32, 0.005),
        ("int8", "none", 8, 32, 0.005),
        ("int4", "int8", 4, 32, 0.07),
        ("int4", "none", 4, 32, 0.07),
    ],
)
def test_quantised_while_loading(make: Make, word: str, activations: str, bits: int, group: int, error: float) -> None:
    backend = make(word, activations)
    values = np.random.default_rng(0).standard_normal((70, WIDTH)).astype(np.float32)
    values[3, :32] = 0
    values[4] = 7
    values[5] = 0
    groups = quantize(values, bits, group)
    expected = np.empty_like(values)
    groups.dequantize_into(expected, 128 if bits == 8 else None)
    assert np.abs(expected - values).max() <= error * np.abs(values).max()
    assert np.array_equal(expected[3, :32], values[3, :32])
    assert np.array_equal(expected[5], values[5])
    weight = backend.memory.pack_matrix([StoredTensor("w", "F32", values.shape, values.data.cast("B"))])
    assert weight.whole.type == (native.Type.uint8 if bits == 8 else native.Type.uint4)
    for count in (1, 5, 40):
        x = rows_of(count)
        rows = multiplied_rows(x, 32, activations, backend)
        assert_near(backend.ops.linear(x, weight), rows @ expected.astype(np.float64).T)
    assert np.array_equal(backend.ops.embed(np.array([6, 69], np.int32), weight), expected[[6, 69]])
    narrow = np.ones((4, 40), np.float32)  # no whole groups
    weight = backend.memory.pack_matrix([StoredTensor("w", "F32", narrow.shape, narrow.data.cast("B"))])
    assert weight.whole.type == native.Type.bfloat16


# ---- int8 with rows in 8 bits: inputs are mixed

MIXED_WIDTHS = (64, 96, 576, WIDTH, 1536, 32 * 67)  # blocks of 32 to 512, 1 to 67 of them
MIXED_ERROR = 2e-3  # of the largest result: a number between two steps may go either way in float32


def stored(values: np.ndarray) -> StoredTensor:
    return StoredTensor("w", "F32", values.shape, values.data.cast("B"))


def random_values(rows: int, width: int) -> np.ndarray:
    return np.random.default_rng([rows, width]).standard_normal((rows, width)).astype(np.float32)


@pytest.mark.parametrize("width", MIXED_WIDTHS)
def test_products_with_mixed_inputs(make: Make, width: int) -> None:
    backend = make("int8", "auto")
    for num_outputs in (1, 33, 200):
        values = random_values(num_outputs, width)
        weight = backend.memory.pack_matrix([stored(values)])
        assert weight.whole.is_mixed
        quantised = rounded_to_bytes(mixed(values))
        for count in ROWS:
            x = rows_of(count, width)
            expected = rounded_to_bytes(mixed(x)) @ quantised.T
            found = backend.ops.linear(x, weight)
            assert np.abs(found - expected).max(initial=0) <= MIXED_ERROR * np.abs(expected).max(initial=1)
            assert np.quantile(np.abs(found - expected), 0.3) <= ERROR * np.abs(expected).max() if count else True
            residual = rows_of(count, num_outputs)
            assert_near(backend.ops.linear_residual(x, weight, residual), found.astype(np.float64) + residual)
            exact, sizes = (
                x.astype(np.float64) @ values.T,
                np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(values, axis=1)),
            )
            most = 0.4 if width == 32 * 67 else 0.08  # 67 blocks are not mixed with one another
            assert (np.abs(found - exact) <= most / np.sqrt(width) * sizes).all()


def test_a_gated_product_with_mixed_inputs(make: Make) -> None:
    backend = make("int8", "auto")
    gate, up = random_values(40, 576) / np.float32(24), random_values(41, 576)[:40] / np.float32(24)
    weight = backend.memory.pack_gated(stored(gate), stored(up))
    for count in (1, 7, 40):
        rows = rounded_to_bytes(mixed(rows_of(count, 576)))
        gates, ups = (rows @ rounded_to_bytes(mixed(part)).T for part in (gate, up))
        expected = gates / (1 + np.exp(-gates)) * ups
        found = backend.ops.gated_mlp(rows_of(count, 576), weight, "silu")
        assert np.abs(found - expected).max() <= MIXED_ERROR * np.abs(expected).max()


def test_one_input_that_is_far_larger_than_the_others_leaves_them_their_steps(make: Make) -> None:
    backend = make("int8", "auto")
    values, x = random_values(64, 576), rows_of(8, 576)
    x[:, :64] /= np.float32(30)
    values[:, 7] = 0  # what it is multiplied by is nothing, so all of a result is the others'
    x[:, 7] = 500
    exact = x.astype(np.float64) @ values.T.astype(np.float64)
    plain = rounded_to_bytes(x.astype(np.float64)) @ rounded_to_bytes(values.astype(np.float64)).T
    error = np.sqrt(np.mean((backend.ops.linear(x, backend.memory.pack_matrix([stored(values)])) - exact) ** 2))
    assert error < np.sqrt(np.mean((plain - exact) ** 2)) / 4


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen_in_what_it_is_multiplied_by_and_nowhere_else(make: Make, strange: float) -> None:
    backend = make("int8", "auto")
    values, x = random_values(40, 576), rows_of(33, 576)
    weight = backend.memory.pack_matrix([stored(values)])
    healthy = backend.ops.linear(x, weight)
    x[20, 3] = strange
    found = backend.ops.linear(x, weight)
    assert np.isnan(found[20]).all()
    assert np.array_equal(np.delete(found, 20, axis=0), np.delete(healthy, 20, axis=0))
    values[11, 500] = strange
    found = backend.ops.linear(x[:20], backend.memory.pack_matrix([stored(values)]))
    assert np.isnan(found[:, 11]).all()
    assert np.array_equal(np.delete(found, 11, axis=1), np.delete(healthy[:20], 11, axis=1))


def test_an_embedding_whose_inputs_are_mixed(make: Make) -> None:
    values = random_values(100, 576)
    values[5] = 0
    backend = make("int8", "auto")
    found = backend.ops.embed(np.array([0, 99, 5, 16], np.int32), backend.memory.pack_matrix([stored(values)]))
    assert np.abs(found - values[[0, 99, 5, 16]]).max() <= 0.01 * np.abs(values).max()
    assert not found[2].any()


@pytest.mark.parametrize("width", MIXED_WIDTHS)
def test_mixed_products_have_the_same_bits_with_every_instruction_set(monkeypatch, width: int) -> None:
    x, values = rows_of(20, width), random_values(70, width)
    found = set()
    for instruction_set in INSTRUCTION_SETS:
        monkeypatch.setenv(ISA_VARIABLE, instruction_set)
        backend = make_backend("native", 2, Precision("bfloat16", "int8", "auto"))
        found.add(backend.ops.linear(x, backend.memory.pack_matrix([stored(values)])).tobytes())
        backend.close()
    assert len(found) == 1


def test_mixed_matrices_are_bytes_with_one_scale_for_each_output(make: Make) -> None:
    memory = make("int8", "auto").memory
    assert memory.matrix_bytes([(160, "BF16")], 576) == 160 * (576 + 4)
    assert not memory.pack_matrix([stored(random_values(16, 32))]).whole.is_mixed  # one group
    narrow = memory.pack_matrix([stored(random_values(16, 40))])  # no whole groups
    assert narrow.whole.type == native.Type.bfloat16


@pytest.mark.parametrize("quantization", ["none", "stored", "int8", "int4"])
def test_sizes_are_known_beforehand(make: Make, quantization: str) -> None:
    memory = make(quantization).memory
    parts = [random_tensor(dtype, rows, WIDTH) for dtype, rows in (("Q4_K", 48), ("Q6_K", 20), ("Q6_K", 33))]
    pieces = memory.pack_matrix(parts).pieces
    expected = memory.matrix_bytes([(part.shape[0], part.dtype) for part in parts], WIDTH)
    assert sum(4 * piece.matrix.num_words for piece in pieces) == expected
    for gate, up in (("Q4_K", "Q4_K"), ("Q4_K", "Q6_K")):
        (piece,) = memory.pack_gated(random_tensor(gate, 20, WIDTH), random_tensor(up, 20, WIDTH)).pieces
        assert 4 * piece.matrix.num_words == memory.matrix_bytes([(20, gate), (20, up)], WIDTH, is_gated=True)
