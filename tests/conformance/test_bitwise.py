"""Tokens and logprobs of a request, bit for bit, whatever the engine does around it (`bitwise.py`): a cut of the sweep
over the demo model that `make bitwise` is."""

from __future__ import annotations

import pytest

from headrace.backends.native.extension import ISA_VARIABLE, native
from tests.conformance.bitwise import (
    ALONE,
    BASELINE,
    Variation,
    assert_same_bits,
    combinations,
    differences,
    make_requests,
    run,
)
from tests.conformance.random_model import Shape, write_model

SEED = 1  # of the combinations
SHAPE = Shape(head_dim=64, num_heads=6, num_kv_heads=2, hidden_size=96, intermediate_size=200)
OTHER_SHAPES = {
    "heads of 16": Shape(head_dim=16, num_heads=4, num_kv_heads=2, hidden_size=64, intermediate_size=48),
    "9 heads of 64 on 3": Shape(head_dim=64, num_heads=9, num_kv_heads=3, hidden_size=80, intermediate_size=96),
    "heads of 80, odd widths": Shape(80, num_heads=3, num_kv_heads=3, hidden_size=97, intermediate_size=131),
    "4 heads of 128 on 1, untied": Shape(128, 4, 1, hidden_size=96, intermediate_size=64, is_tied=False),
}
FEW_BITS_SHAPE = Shape(head_dim=64, num_heads=6, num_kv_heads=2, hidden_size=96, intermediate_size=192)  # whole groups
FEW, MANY = 24, 110  # requests


def model_of(folder, shape: Shape, dtype: str, backend: str = "native") -> dict[str, str]:
    write_model(folder, shape)
    return {"model": str(folder), "dtype": dtype, "backend": backend}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return model_of(tmp_path_factory.mktemp("model"), SHAPE, "bfloat16")


@pytest.fixture(scope="module")
def asked():
    return make_requests(MANY, SHAPE.vocab_size)


@pytest.fixture(scope="module")
def baseline(model, asked):
    return run(model, asked, BASELINE)


@pytest.mark.slow
@pytest.mark.parametrize("variation", [*ALONE, *combinations(20, SEED)], ids=lambda variation: variation.name)
def test_nothing_around_a_request_changes_a_bit(model, asked, baseline, variation: Variation):
    found = run(model, asked, variation)
    assert_same_bits(found, baseline, variation)
    if variation.name == "preempted":
        assert found.num_preemptions >= 5


def check_combinations(model, num_requests: int, seed: int) -> None:
    asked = make_requests(num_requests, SHAPE.vocab_size, seed)
    baseline = run(model, asked, BASELINE)
    for variation in combinations(3, seed):
        assert_same_bits(run(model, asked, variation), baseline, variation)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", OTHER_SHAPES.values(), ids=OTHER_SHAPES.keys())
def test_with_other_shapes(tmp_path, shape, dtype):
    check_combinations(model_of(tmp_path, shape, dtype), FEW, seed=shape.head_dim)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_with_every_instruction_set_of_this_processor(tmp_path, monkeypatch, dtype):
    model = model_of(tmp_path, SHAPE, dtype)
    for instruction_set in native.instruction_sets():
        monkeypatch.setenv(ISA_VARIABLE, instruction_set)
        check_combinations(model, FEW // 2, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["none", "int8", "int16"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_with_matrices_of_few_bits(tmp_path, monkeypatch, quantization, activations):
    words = {"quantization": quantization, "activation_quantization": activations}
    model = model_of(tmp_path, FEW_BITS_SHAPE, "bfloat16") | words
    for instruction_set in native.instruction_sets():
        monkeypatch.setenv(ISA_VARIABLE, instruction_set)
        check_combinations(model, FEW // 2, seed=5)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [SHAPE, OTHER_SHAPES["heads of 80, odd widths"]], ids=["heads of 64", "heads of 80"])
@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
def test_with_a_kv_cache_of_8_bits(tmp_path, monkeypatch, shape, kv_cache_dtype):
    model = model_of(tmp_path, shape, "bfloat16") | {"kv_cache_dtype": kv_cache_dtype}
    for instruction_set in native.instruction_sets():
        monkeypatch.setenv(ISA_VARIABLE, instruction_set)
        check_combinations(model, FEW // 2, seed=6)


@pytest.mark.slow
@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
def test_prefix_hits_and_preemption_with_a_kv_cache_of_8_bits(model, asked, kv_cache_dtype):
    model = model | {"kv_cache_dtype": kv_cache_dtype}
    baseline = run(model, asked, BASELINE)
    for variation in ALONE:
        if variation.name in ("every prompt cached", "preempted"):
            found = run(model, asked, variation)
            assert_same_bits(found, baseline, variation)
            assert found.num_preemptions >= 5 or not variation.is_tight


@pytest.mark.slow
@pytest.mark.parametrize("kv_cache_dtype", ["bfloat16", "fp8"])
def test_in_float32_with_another_kv_cache(tmp_path, kv_cache_dtype):
    check_combinations(model_of(tmp_path, SHAPE, "float32") | {"kv_cache_dtype": kv_cache_dtype}, FEW // 2, seed=7)


@pytest.mark.slow
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8"])
def test_with_numpy(tmp_path, kv_cache_dtype):
    model = model_of(tmp_path, SHAPE, "float32", backend="numpy") | {"kv_cache_dtype": kv_cache_dtype}
    check_combinations(model, FEW // 2, seed=4)


def test_the_comparison_sees_a_bit(model, tmp_path):
    asked = make_requests(8, SHAPE.vocab_size)
    baseline, repeat = run(model, asked, BASELINE), run(model, asked, BASELINE)
    assert differences(repeat, baseline) == []
    request_id, (token, logprobs) = next((r, a[-1]) for r, a in repeat.answers.items() if a[-1][1])
    repeat.answers[request_id][-1] = token, bytes([logprobs[0] ^ 1]) + logprobs[1:]
    assert len(differences(repeat, baseline)) == 1
    with pytest.raises(AssertionError, match="differs in 1 of 8 requests"):
        assert_same_bits(repeat, baseline, BASELINE)
    other_arithmetic = run(model_of(tmp_path, SHAPE, "float32"), asked, BASELINE)
    assert len(differences(other_arithmetic, baseline)) == len(
        [r for r in asked if asked[r].params.logprobs is not None]
    )
