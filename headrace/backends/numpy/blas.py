"""The hold on BLAS: one thread, but for the product of a single row, where several are proved to give the same bits.

Our own pool cannot help a single row: handing over costs as much as a small product takes. BLAS has threads that wait
for work and hand over in a few microseconds. It gives each an equal share of the matrix, and its kernels take rows by
four or so and those that are left over in another way, with other bits. So only matrices are divided whose shares are
whole multiples of `ROW_STEP`. That is how BLAS is known to work, and not taken for granted: for each shape, the
first product is computed both ways and compared, bit for bit, and a shape that differs stays with one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

Float32 = NDArray[np.float32]

ROW_STEP = 16  # a multiple of the rows that any GEMV kernel takes at a time


class Blas:
    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._controller = ThreadpoolController()
        self._libraries = [lib for lib in self._controller.lib_controllers if lib.user_api == "blas"]
        self._is_proved: dict[tuple[int, ...], bool] = {}  # by the matrix' shape

    @contextmanager
    def single_threaded(self) -> Iterator[None]:
        """Put back afterwards, because the process may be a user's (offline `LLM`)."""
        with self._controller.limit(limits=1, user_api="blas"):
            yield

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
