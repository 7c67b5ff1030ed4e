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
from tests.conformance.few_bits import LARGEST, random_tensor, rounded_rows, values_of
from tests.conformance.implementations import IMPLEMENTATIONS

INSTRUCTION_SETS = sorted({one.instruction_set for one in IMPLEMENTATIONS if one.instruction_set})
ROWS = (0, 1, 2, 3, 5, 6, 7, 13, 33, 300)
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


@pytest.mark.parametrize("activations", LARGEST)
@pytest.mark.parametrize("dtype", BLOCK_FORMATS)
def test_products(make: Make, dtype: str, activations: str) -> None:
    backend = make("stored", activations)
    group = BLOCK_FORMATS[dtype].group
    for num_outputs in (1, 33, 200):
        tensor = random_tensor(dtype, num_outputs, WIDTH)
        weight, values = backend.memory.pack_matrix([tensor]), values_of(tensor).astype(np.float64)
        for count in ROWS:
            x = rows_of(count)
            expected = rounded_rows(x, group, activations) @ values.T
            assert_near(backend.ops.linear(x, weight), expected)
            residual = rows_of(count, num_outputs)
            assert_near(backend.ops.linear_residual(x, weight, residual), expected + residual)


@pytest.mark.parametrize("activations", LARGEST)
@pytest.mark.parametrize("dtype", BLOCK_FORMATS)
def test_a_gated_product(make: Make, dtype: str, activations: str) -> None:
    backend = make("stored", activations)
    for inner in (16, 40):
        gate, up = (random_tensor(dtype, inner, WIDTH, seed) for seed in (1, 2))
        weight = backend.memory.pack_gated(gate, up)
        for count in (1, 7, 40):
            x = rows_of(count) / np.float32(100)
            rounded = rounded_rows(x, BLOCK_FORMATS[dtype].group, activations)
            gates, ups = (rounded @ values_of(part).astype(np.float64).T for part in (gate, up))
            assert_near(backend.ops.gated_mlp(x, weight, "silu"), gates / (1 + np.exp(-gates)) * ups)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("stored", BLOCK_FORMATS)
def test_rows_as_they_are_give_the_bits_of_an_expanded_matrix(make: Make, stored: str, dtype: str) -> None:
    kept, expanded = make("stored", "none", dtype=dtype), make("none", dtype=dtype)
    tensor, others = random_tensor(stored, 200, WIDTH), [random_tensor(stored, 40, WIDTH, seed) for seed in (1, 2)]
    ids = np.array([0, 199, 15, 16], np.int32)
    found = []
    for backend in (kept, expanded):
        weight, gated = backend.memory.pack_matrix([tensor]), backend.memory.pack_gated(*others)
        results = [backend.ops.embed(ids, weight)]
        for count in ROWS:
            x = rows_of(count) / np.float32(100)
            results += [backend.ops.linear(x, weight), backend.ops.gated_mlp(x, gated, "silu")]
        found.append([result.tobytes() for result in results])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("quantization", "activations", "product"),
    [
        ("int8", "auto", "bfloat16"),
        ("int4", "auto", "uint8"),
        ("int8", "int16", "uint8"),
        ("int4", "none", "bfloat16"),
    ],
)
def test_what_rows_are_multiplied_by(make: Make, quantization: str, activations: str, product: str) -> None:
    weight = make(quantization, activations).memory.pack_matrix([random_tensor("Q8_0", 16, WIDTH)])
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


@pytest.mark.parametrize("activations", LARGEST)
@pytest.mark.parametrize("dtype", ["Q4_1", "Q8_0", "Q6_K"])
def test_a_row_depends_on_itself_alone(make: Make, dtype: str, activations: str) -> None:
    tensor = random_tensor(dtype, 120, WIDTH)
    x = rows_of(100)
    found = []
    for num_threads in (1, 2):
        backend = make("stored", activations, num_threads)
        weight = backend.memory.pack_matrix([tensor])
        found.append(backend.ops.linear(x, weight))
        for part in (slice(0, 1), slice(3, 5), slice(10, 17), slice(20, 84)):
            assert backend.ops.linear(x[part], weight).tobytes() == found[-1][part].tobytes()
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("activations", LARGEST)
@pytest.mark.parametrize("dtype", BLOCK_FORMATS)
def test_vectors_and_tiles_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, dtype: str, activations: str) -> None:
    """Integers are exact, and what is not comes in the same order."""
    found = {}
    for instruction_set in set(native.instruction_sets()) & {"avx512", "avx512bf16", "amx"}:
        monkeypatch.setenv(ISA_VARIABLE, instruction_set)
        backend = make_backend("native", 1, Precision("bfloat16", "stored", activations))
        weight = backend.memory.pack_matrix([random_tensor(dtype, 72, WIDTH)])
        found[instruction_set] = [backend.ops.linear(rows_of(count), weight).tobytes() for count in ROWS]
        backend.close()
    assert len({tuple(bits) for bits in found.values()}) <= 1


@pytest.mark.parametrize(("word", "bits", "error"), [("int8", 8, 0.005), ("int4", 4, 0.07)])
def test_quantised_while_loading(make: Make, word: str, bits: int, error: float) -> None:
    backend = make(word)
    values = np.random.default_rng(0).standard_normal((70, WIDTH)).astype(np.float32)
    values[3, :32] = 0
    values[4, :32] = 7
    groups = quantize(values, bits)
    expected = np.empty_like(values)
    groups.dequantize_into(expected, 128 if bits == 8 else None)
    assert np.abs(expected - values).max() <= error * np.abs(values).max()
    assert np.array_equal(expected[3, :32], values[3, :32])
    weight = backend.memory.pack_matrix([StoredTensor("w", "F32", values.shape, values.data.cast("B"))])
    assert weight.whole.type == (native.Type.uint8 if bits == 8 else native.Type.uint4)
    x = rows_of(5)
    assert_near(backend.ops.linear(x, weight), rounded_rows(x, 32) @ expected.astype(np.float64).T)
    narrow = np.ones((4, 40), np.float32)  # no whole groups
    weight = backend.memory.pack_matrix([StoredTensor("w", "F32", narrow.shape, narrow.data.cast("B"))])
    assert weight.whole.type == native.Type.bfloat16


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
