"""The blocks of the KV cache: who refers to each, which are free, and which of those still hold something findable.

A block is an integer; its facts are in flat lists. A free block keeps its content and its hash until it is handed out
again, so a later request with the same beginning can take it back. The free queue is ordered: blocks leave at the
front (least recently freed), come back at the end, and can be taken out of the middle, all in O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from headrace.core.kv_cache.hashing import BlockHash
from headrace.errors import InvariantError


class BlockPool:
    """`num_blocks` blocks with ids from 0. Every method is O(1) for each block it touches."""

    def __init__(self, num_blocks: int, *, enable_caching: bool) -> None:
        self.num_blocks = num_blocks
        self.enable_caching = enable_caching
        self._ref_counts = [0] * num_blocks
        self._hashes: list[BlockHash | None] = [None] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._cached: dict[BlockHash, int] = {}
        self.num_releases = 0  # counter: while it stands still, no block has become free

    @property
    def num_free(self) -> int:
        """Blocks that nobody refers to, findable ones included."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks that is referred to, 0..1."""
        return 1.0 - len(self._free) / self.num_blocks

    def is_free(self, block_id: int) -> bool:
        return self._ref_counts[block_id] == 0

    def is_shared(self, block_id: int) -> bool:
        return self._ref_counts[block_id] > 1

    def allocate(self, num_blocks: int) -> list[int]:
        """Take blocks from the front of the free queue, each with one reference; what they held is forgotten.

        The caller has checked `num_free`; taking more raises KeyError.
        """
        block_ids = [self._free.popitem(last=False)[0] for _ in range(num_blocks)]
        for block_id in block_ids:
            self._forget(block_id)
            self._ref_counts[block_id] = 1
        return block_ids

    def lookup(self, block_hash: BlockHash) -> int | None:
        """The block that holds this content, free or in use; valid until the next `allocate`."""
        return self._cached.get(block_hash)

    def touch(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each block, taking it out of the free queue if it was there."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                del self._free[block_id]
            self._ref_counts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop one reference from each block. A request's blocks are queued last first: the end of a sequence is less
        likely to be shared than its beginning, so it is reused earlier."""
        self.num_releases += 1
        for block_id in reversed(block_ids):
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._free[block_id] = None

    def register(self, block_id: int, block_hash: BlockHash) -> None:
        """Make a full block findable. Where another block has the same content already, that one stays known."""
        if self.enable_caching and block_hash not in self._cached:
            self._cached[block_hash] = block_id
            self._hashes[block_id] = block_hash

    def reset_prefix_cache(self) -> bool:
        """Forget all content. Only while no block is in use, else nothing is done and the answer is False."""
        if len(self._free) < self.num_blocks:
            return False
        self._cached.clear()
        self._hashes = [None] * self.num_blocks
        return True

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise `InvariantError` unless the reference counts are those of these block tables, which are all there are,
        the free queue holds the rest, and every findable block knows its hash."""
        counts = [0] * self.num_blocks
        for table in tables:
            for block_id in table:
                counts[block_id] += 1
        if counts != self._ref_counts:
            wrong = next(i for i, count in enumerate(counts) if count != self._ref_counts[i])
            raise InvariantError(
                f"block {wrong} has {self._ref_counts[wrong]} references, of which {counts[wrong]} exist"
            )
        if self._free.keys() != {block_id for block_id, count in enumerate(counts) if count == 0}:
            raise InvariantError("the free queue does not hold the blocks that nobody refers to")
        known = {block_hash: i for i, block_hash in enumerate(self._hashes) if block_hash is not None}
        if known != self._cached:
            raise InvariantError("the prefix cache and the hashes of the blocks differ")

    def _forget(self, block_id: int) -> None:
        block_hash = self._hashes[block_id]
        if block_hash is not None:
            del self._cached[block_hash]
            self._hashes[block_id] = None
