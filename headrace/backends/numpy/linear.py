"""x @ W.T with bits that do not depend on the rows around: one BLAS matrix-vector product for each row and panel.

docs/adr/0001 has the measurements. In short: a GEMM gives a row other bits depending on its place in the batch, so
every row is its own GEMV, of a shape that the matrix alone decides. Panels of W are outermost and rows innermost: a
panel is read from memory once for all rows of the step. The loop over both runs inside `np.matmul`, without the GIL.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from headrace.backends.numpy.blas import Blas
from headrace.backends.numpy.memory import Matrix
from headrace.backends.numpy.threads import ThreadPool

Float32 = NDArray[np.float32]

# Multiply-adds below which a second thread of ours costs more than it saves.
MIN_SPLIT_WORK = 4_000_000


def multiply(x: Float32, matrix: Matrix, pool: ThreadPool, blas: Blas) -> Float32:
    """[n, in] by [out, in] -> [n, out]."""
    if len(x) == 1:
        row = blas.multiply_row(matrix.rows, x[0], lambda: multiply_by_panels(x, matrix, pool)[0])
        return row[None]
    return multiply_by_panels(x, matrix, pool)


def multiply_by_panels(x: Float32, matrix: Matrix, pool: ThreadPool) -> Float32:
    """What a product is: every row by every panel."""
    out = np.empty((len(x), len(matrix.rows)), np.float32)
    parts = divide(matrix, len(x), pool.num_threads)
    pool.run([partial(multiply_panels, x, matrix, part, out[:, columns(matrix, part)]) for part in parts])
    return out


def divide(matrix: Matrix, num_rows: int, num_threads: int) -> list[range]:
    """Ranges of panels, one for each thread that is worth its while. Who multiplies a panel changes no bit."""
    is_large = num_rows * matrix.rows.size >= MIN_SPLIT_WORK
    num_parts = max(1, min(num_threads, matrix.num_panels)) if is_large else 1
    bounds = [matrix.num_panels * part // num_parts for part in range(num_parts + 1)]
    return [range(first, last) for first, last in pairwise(bounds)]


def columns(matrix: Matrix, part: range) -> slice:
    """The columns of a product that a range of panels computes; rows after the last panel go with the last range."""
    is_last = part.stop == matrix.num_panels
    panel = matrix.panel_rows
    return slice(part.start * panel, len(matrix.rows) if is_last else part.stop * panel)


def multiply_panels(x: Float32, matrix: Matrix, part: range, out: Float32) -> None:
    """x times a range of panels, into `out` [n, the columns of `part`], which may be a view."""
    num_rows, panel = len(x), matrix.panel_rows
    width = len(part) * panel
    # [panels, n, panel, 1] = [panels, 1, panel, in] @ [1, n, in, 1], written in place; order="C" keeps panels outermost
    target = out[:, :width].reshape(num_rows, len(part), panel, 1).transpose(1, 0, 2, 3)
    np.matmul(matrix.panels(part)[:, None], x[None, :, :, None], out=target, order="C")
    if width < out.shape[1]:
        np.matmul(matrix.rows[part.stop * panel :], x[:, :, None], out=out[:, width:, None], order="C")
