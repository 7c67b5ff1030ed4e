"""Threads of BLAS at one row: used where they are proved to change no bit, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.backends.numpy.blas import Blas
from headrace.backends.numpy.linear import multiply, multiply_by_panels
from headrace.backends.numpy.memory import Matrix
from headrace.backends.numpy.threads import ThreadPool


@pytest.fixture
def pool():
    pool = ThreadPool(1)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    "shape", [(1, 1), (7, 5), (97, 131), (192, 64), (960, 576), (3072, 576), (32001, 33), (32000, 33), (96, 7)], ids=str
)
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_threads_change_no_bit(shape, num_threads, pool):
    rng = np.random.default_rng(shape[0])
    matrix = Matrix(rng.standard_normal(shape, dtype=np.float32))
    blas = Blas(num_threads)
    with blas.single_threaded():
        for _ in range(20):  # the first proves, the others use it
            x = rng.standard_normal((1, shape[1]), dtype=np.float32)
            product = multiply(x, matrix, pool, blas)
            assert product.tobytes() == multiply_by_panels(x, matrix, pool).tobytes()


def test_a_shape_that_differs_stays_with_one_thread(monkeypatch):
    blas = Blas(2)
    rows, x = np.ones((32, 3), np.float32), np.ones(3, np.float32)
    monkeypatch.setattr(blas, "_by_all_threads", lambda rows, x: np.nextafter(rows @ x, np.float32(9)))
    for _ in range(3):
        assert blas.multiply_row(rows, x, lambda: rows @ x).tolist() == [3.0] * 32


def test_a_shape_that_does_not_divide_is_not_tried(monkeypatch):
    blas = Blas(2)
    rows, x = np.ones((40, 3), np.float32), np.ones(3, np.float32)
    monkeypatch.setattr(blas, "_by_all_threads", lambda rows, x: pytest.fail("tried"))
    assert blas.multiply_row(rows, x, lambda: rows @ x).tolist() == [3.0] * 40
