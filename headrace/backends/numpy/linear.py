"""x @ W.T with bits that do not depend on the rows around.

docs/adr/0001 has the measurements. In short: a product of several rows gives a row other bits depending on its place.
So there are two ways:

- Row by row (`multiply`): every row is its own BLAS matrix-vector product (GEMV), of a shape that the matrix alone
  decides. Panels of W are outermost and rows innermost: a panel is read from memory once for all rows of the step. The
  loop over both runs inside `np.matmul`, without the GIL.
- In groups (`way_for`): products of several rows, in shapes for which `blas.py` proves that a row's bits are its own.
  Much faster for a prompt and slower for a single row: so only for the largest part of a model, the gated MLP.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.backends.numpy.blas import Blas
from headrace.backends.numpy.memory import GROUP, MAX_ROWS, PAIR, GatedMatrix, GatedPanel, Matrix
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


class Way(Protocol):
    """How a step's rows are multiplied with a gated matrix. Its size decides, for all steps: each has its own bits."""

    def prepare(self, x: Float32) -> Float32:
        """x [n, in] as `multiply` takes it."""
        ...

    def panels(self, matrix: GatedMatrix, num_rows: int) -> list[GatedPanel]: ...

    def multiply(self, x: Float32, window: Float32, inside: slice, out: Float32) -> None:
        """Prepared x times the columns `inside` a window, into `out` [n, these columns], which may be a view."""
        ...


class _InGroups:
    """Groups of rows, the last one filled up with zeros: one product for up to MAX_ROWS."""

    def prepare(self, x: Float32) -> Float32:
        num_rows = PAIR if len(x) == 1 else -(-len(x) // GROUP) * GROUP
        prepared = np.zeros((num_rows, x.shape[1]), np.float32)
        prepared[: len(x)] = x
        return prepared

    def panels(self, matrix: GatedMatrix, num_rows: int) -> list[GatedPanel]:
        return matrix.wide_panels if num_rows == 1 else matrix.panels

    def multiply(self, x: Float32, window: Float32, inside: slice, out: Float32) -> None:
        for start in range(0, len(out), MAX_ROWS):
            rows = out[start : start + MAX_ROWS]
            rows[:] = np.matmul(x[start : start + MAX_ROWS], window)[: len(rows), inside]


class _RowByRow:
    """What needs no proof."""

    def prepare(self, x: Float32) -> Float32:
        return x[:, None]

    def panels(self, matrix: GatedMatrix, num_rows: int) -> list[GatedPanel]:
        return matrix.panels

    def multiply(self, x: Float32, window: Float32, inside: slice, out: Float32) -> None:
        np.matmul(x, window[:, inside], out=out[:, None])


_IN_GROUPS, _ROW_BY_ROW = _InGroups(), _RowByRow()


def way_for(matrix: GatedMatrix, blas: Blas) -> Way:
    is_proved = blas.keeps_rows_apart(matrix.panels[0].gate, matrix.wide_panels[0].gate)
    return _IN_GROUPS if is_proved else _ROW_BY_ROW
