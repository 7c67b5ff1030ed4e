"""The hold on BLAS: its threads, and proofs of what it does but does not promise.

A product must give a row the same bits in any company and with any number of threads. BLAS promises neither; what it
does depends on the shapes alone. So what we rely on is tried once for each shape, and where it does not hold it is not
used. Two things are tried:

- Several rows in one product: `keeps_rows_apart`.
- All threads for a single row: `multiply_row`. Our own pool cannot help a single GEMV: handing over costs as much as a
  small one takes. BLAS has threads that wait for work and hand over in a few microseconds. It gives each an equal share
  of the matrix, and its kernels take rows by four or so and those that are left over in another way, with other bits.
  So only matrices are divided whose shares are whole multiples of `ROW_STEP`, and the first product of a shape is
  computed both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from headrace.backends.numpy.memory import EDGE, GROUP, MAX_ROWS, PAIR

Float32 = NDArray[np.float32]

ROW_STEP = 16  # a multiple of the rows that any GEMV kernel takes at a time


class Blas:
    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._controller = ThreadpoolController()
        self._libraries = [lib for lib in self._controller.lib_controllers if lib.user_api == "blas"]
        self._is_proved: dict[tuple[int, ...], bool] = {}  # by the matrix' shape
        self._are_rows_apart: dict[tuple[int, ...], bool] = {}  # by the windows' sizes

    @contextmanager
    def single_threaded(self) -> Iterator[None]:
        """Put back afterwards, because the process may be a user's (offline `LLM`)."""
        with self._controller.limit(limits=1, user_api="blas"):
            yield

    def keeps_rows_apart(self, window: Float32, wide_window: Float32) -> bool:
        """Whether products of whole groups of rows with windows [in, columns] of the first shape give every row the
        bits that it has in a pair with a window of either shape, but for the EDGE columns at both ends."""
        sizes = (*window.shape, wide_window.shape[1])
        proved = self._are_rows_apart.get(sizes)
        if proved is None:
            proved = self._are_rows_apart[sizes] = _try_groups(*sizes)
        return proved

    def multiply_row(self, rows: Float32, x: Float32, by_one_thread: Callable[[], Float32]) -> Float32:
        """rows [out, in] times x [in] -> [out], by all threads where that is proved, else by `by_one_thread`, which
        says what is right."""
        if self._num_threads == 1 or len(rows) % (ROW_STEP * self._num_threads):
            return by_one_thread()
        is_proved = self._is_proved.get(rows.shape)
        if is_proved is None:
            right = by_one_thread()
            self._is_proved[rows.shape] = np.array_equal(self._by_all_threads(rows, x), right)
            return right
        return self._by_all_threads(rows, x) if is_proved else by_one_thread()

    def _by_all_threads(self, rows: Float32, x: Float32) -> Float32:
        self._set_threads(self._num_threads)
        product: Float32 = np.matmul(rows, x)
        self._set_threads(1)
        return product

    def _set_threads(self, num_threads: int) -> None:
        for library in self._libraries:
            library.set_num_threads(num_threads)


def _try_groups(num_in: int, num_columns: int, num_wide_columns: int) -> bool:
    """Every place in every number of groups against a pair, on numbers that are the same in every process."""
    generator = np.random.default_rng(num_in)
    wide_window = generator.standard_normal((num_in, num_wide_columns), np.float32)
    rows = generator.standard_normal((MAX_ROWS, num_in), np.float32)
    pairs = np.zeros((MAX_ROWS, PAIR, num_in), np.float32)
    pairs[:, 0] = rows
    alone = np.matmul(pairs, wide_window)[:, 0]
    last = num_wide_columns - num_columns
    for start in (*range(0, last, num_columns - 2 * EDGE), last):
        window = wide_window[:, start : start + num_columns]
        inside = slice(EDGE, num_columns - EDGE)
        right = alone[:, start : start + num_columns][:, inside]
        products = [np.matmul(pairs, window)[:, 0]]
        products += [np.matmul(rows[:num_rows], window) for num_rows in range(GROUP, MAX_ROWS + 1, GROUP)]
        if not all(np.array_equal(product[:, inside], right[: len(product)]) for product in products):
            return False
    return True
