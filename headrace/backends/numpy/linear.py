"""x @ W.T with bits that do not depend on the rows around: one BLAS matrix-vector product for each row and panel.

docs/adr/0001 has the measurements. In short: a GEMM gives a row other bits depending on its place in the batch, so
every row is its own GEMV, of a shape that the matrix alone decides. Panels of W are outermost and rows innermost: a
panel is read from memory once for all rows of the step. The loop over both runs inside `np.matmul`, without the GIL.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from headrace.backends.numpy.memory import PANEL_ROWS, Matrix
from headrace.backends.numpy.threads import Task, ThreadPool

Float32 = NDArray[np.float32]

# Multiply-adds below which a second thread costs more than it saves.
MIN_SPLIT_WORK = 1_500_000


def multiply(x: Float32, matrix: Matrix, pool: ThreadPool) -> Float32:
    """[n, in] by [out, in] -> [n, out]. x must have contiguous rows."""
    num_rows, num_panels = x.shape[0], matrix.num_panels
    out = np.empty((num_rows, matrix.rows.shape[0]), np.float32)
    if num_rows == 0:
        return out
    remainder = matrix.remainder()
    if len(remainder):
        # [n, out, 1] = [1, out, in] @ [n, in, 1]
        np.matmul(remainder[None], x[:, :, None], out=out[:, num_panels * PANEL_ROWS :, None], order="C")
    if num_rows * matrix.rows.size < MIN_SPLIT_WORK or pool.num_threads == 1:
        _multiply_panels(x, matrix, out, 0, num_panels)
        return out
    bounds = [num_panels * part // pool.num_threads for part in range(pool.num_threads + 1)]
    tasks: list[Task] = [
        partial(_multiply_panels, x, matrix, out, first, last) for first, last in zip(bounds, bounds[1:], strict=False)
    ]
    pool.run(tasks)
    return out


def _multiply_panels(x: Float32, matrix: Matrix, out: Float32, first: int, last: int) -> None:
    """[panels, n, panel, 1] = [panels, 1, panel, in] @ [1, n, in, 1], written into columns of `out` in place."""
    columns = out[:, first * PANEL_ROWS : last * PANEL_ROWS]
    target = columns.reshape(x.shape[0], last - first, PANEL_ROWS, 1).transpose(1, 0, 2, 3)
    np.matmul(matrix.panels(first, last)[:, None], x[None, :, :, None], out=target, order="C")
