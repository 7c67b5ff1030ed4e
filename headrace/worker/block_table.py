"""Which KV blocks each row has, as one array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class BlockTable:
    """`blocks[row, i]` is the block of positions i * block_size to (i + 1) * block_size of the row's request."""

    def __init__(self, max_num_rows: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = np.zeros((max_num_rows, -(-max_model_len // block_size)), np.int32)
        self._num_blocks = [0] * max_num_rows

    def set(self, row: int, block_ids: Sequence[int]) -> None:
        self._num_blocks[row] = 0
        self.append(row, block_ids)

    def append(self, row: int, block_ids: Sequence[int]) -> None:
        start = self._num_blocks[row]
        end = start + len(block_ids)
        self.blocks[row, start:end] = block_ids
        self._num_blocks[row] = end

    def slots(self, rows: NDArray[np.intp], positions: NDArray[np.int32]) -> NDArray[np.int32]:
        """Where the KV of one position of each row lies: `[n]`, `[n]` -> `[n]`."""
        block, offset = np.divmod(positions, self.block_size)
        slots: NDArray[np.int32] = self.blocks[rows, block] * self.block_size + offset
        return slots
