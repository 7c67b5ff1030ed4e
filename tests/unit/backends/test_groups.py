"""Products of several rows: used where every row is proved to keep its bits, and nowhere else."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from headrace.backends.numpy import blas, linear
from headrace.backends.numpy.backend import NumpyBackend
from headrace.backends.numpy.blas import Blas
from headrace.backends.numpy.memory import EDGE, GROUP, MAX_ROWS, NumpyMemory
from headrace.model.ops import AttentionSpec, StepShape
from tests.conformance.batches import normal, stored

# (inner, in): the demo model's, odd ones, narrower last panels, many panels, one too narrow to be proved
SHAPES = [(1536, 576), (131, 97), (300, 81), (599, 33), (2100, 40), (48, 1), (5, 3)]


def pack(inner: int, num_in: int, memory: NumpyMemory):
    return memory.pack_gated(stored(normal(1, inner, num_in)), stored(normal(2, inner, num_in)))


@pytest.fixture
def backend():
    backend = NumpyBackend(2)
    with backend.running():
        yield backend
    backend.close()


@pytest.fixture
def proved_here(backend):
    """For tests of what the proof finds out: skips where this BLAS keeps no rows apart at all."""
    if not blas._try_groups(576, 272, 784):
        pytest.skip("this BLAS does not keep rows apart")


def assert_rows_are_alone(backend, shape):
    """In any place and company: random choices of few rows, in odd numbers, and in more than one product takes."""
    packed = pack(*shape, backend.memory)
    rng = np.random.default_rng(7)
    x = rng.standard_normal((40, shape[1]), dtype=np.float32)
    alone = np.concatenate([backend.ops.gated_mlp(x[i : i + 1], packed, "silu") for i in range(len(x))])
    for num_rows in (2, 3, 8, 11, 12, 13, 16, 24, 48, 61, 72, 96, 97, 109, 200):
        places = rng.integers(0, len(x), num_rows)
        together = backend.ops.gated_mlp(x[places], packed, "silu")
        assert together.tobytes() == alone[places].tobytes(), num_rows


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_in_groups_a_row_has_the_bits_that_it_has_alone(backend, shape):
    assert_rows_are_alone(backend, shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_ways_are_the_formula(backend, shape, monkeypatch):
    packed = pack(*shape, backend.memory)
    gate, up = np.split(packed.rows.astype(np.float64), 2)
    x = normal(3, 30, shape[1])
    gated = x @ gate.T
    expected = gated / (1 + np.exp(-gated)) * (x @ up.T)
    for _ in range(2):
        result = backend.ops.gated_mlp(x, packed, "silu")
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)
        monkeypatch.setattr(Blas, "keeps_rows_apart", lambda self, window, wide_window: False)


def test_without_a_proof_rows_are_multiplied_one_by_one(backend, monkeypatch):
    monkeypatch.setattr(blas, "_try_groups", lambda *shape: False)
    assert_rows_are_alone(backend, (300, 81))


def test_the_demo_model_is_multiplied_in_groups(backend, proved_here):
    packed = pack(1536, 576, backend.memory)
    assert isinstance(linear.way_for(packed, backend._blas), linear._InGroups)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("GROUP", 16), ("GROUP", 4), ("EDGE", 0)],
    ids=["groups of 16", "groups of 4", "no edges"],
)
def test_the_proof_refuses_what_mixes_rows(proved_here, monkeypatch, setting, value):
    monkeypatch.setattr(blas, setting, value)
    assert not blas._try_groups(576, 272, 784)


def test_the_proof_refuses_windows_that_blas_cuts_itself(proved_here):
    """Wherever it cuts there are new edges, right in the middle."""
    assert not blas._try_groups(576, 8192, 8192)


def test_the_proof_is_made_once_for_each_shape(backend, monkeypatch):
    tried = []
    monkeypatch.setattr(blas, "_try_groups", lambda *shape: bool(tried.append(shape)))
    for seed in (3, 4):
        for shape in ((300, 81), (1536, 576)):
            backend.ops.gated_mlp(normal(seed, 5, shape[1]), pack(*shape, backend.memory), "silu")
    assert len(tried) == len(set(tried)) == 2


@pytest.mark.parametrize("inner", [5, 16, 48, 288, 289, 300, 1536, 2100, 11008])
def test_panels_cover_every_column_once_in_windows_of_one_size(inner):
    packed = NumpyMemory().pack_gated(stored(normal(1, inner, 2)), stored(normal(2, inner, 2)))
    gate, up = np.split(packed.rows, 2)
    for panels in (packed.panels, packed.wide_panels):
        assert np.concatenate([panel.gate[:, panel.inside].T for panel in panels]).tobytes() == gate.tobytes()
        assert np.concatenate([panel.up[:, panel.inside].T for panel in panels]).tobytes() == up.tobytes()
        assert [panel.place.start for panel in panels] == [0, *(panel.place.stop for panel in panels[:-1])]
        assert len({window.shape for panel in panels for window in (panel.gate, panel.up)}) == 1
        for panel in panels:
            assert panel.inside.start >= EDGE
            assert panel.inside.stop <= panel.gate.shape[1] - EDGE


@pytest.mark.parametrize("num_rows", [1, GROUP + 1, MAX_ROWS + 1, 500])
def test_step_bytes_is_an_upper_bound(backend, num_rows):
    inner, hidden = 1536, 576
    shape = StepShape(
        max_num_tokens=num_rows,
        max_num_requests=1,
        max_model_len=16,
        num_threads=2,
        hidden_size=hidden,
        intermediate_size=inner,
        vocab_size=0,
        attention=AttentionSpec(0, 0, 0, 0, 1.0),
    )
    packed, x = pack(inner, hidden, backend.memory), normal(3, num_rows, hidden)
    tracemalloc.start()  # numpy tells it of its arrays
    try:
        backend.ops.gated_mlp(x, packed, "silu")  # the trial is part of it
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= backend.memory.step_bytes(shape)
