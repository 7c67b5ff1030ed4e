"""The KV cache as the scheduler sees it: does a request fit, what does it hold, what is already computed."""

from __future__ import annotations

from headrace.core.kv_cache.block_pool import BlockPool
from headrace.core.kv_cache.hashing import extend_block_hashes
from headrace.core.request import Request


class KVCacheManager:
    """Block tables of requests over one pool. Positions are token positions in a request, counted from 0."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_caching: bool) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks, enable_caching=enable_caching)
        self.num_queried_tokens = 0  # counters over new requests: tokens looked up, tokens found
        self.num_hit_tokens = 0

    @property
    def usage(self) -> float:
        return self.pool.usage

    def blocks_for(self, num_positions: int) -> int:
        """How many blocks hold this many positions."""
        return -(-num_positions // self.block_size)

    def find_computed_blocks(self, request: Request) -> list[int]:
        """The longest run of blocks from the request's beginning that the cache holds. At least the last known token
        is left to be computed, as its output is what the request waits for. Takes no reference: use the answer in
        `allocate` before anything else is allocated."""
        if not self.pool.enable_caching:
            return []
        block_ids: list[int] = []
        for block_hash in request.block_hashes[: (request.num_tokens - 1) // self.block_size]:
            block_id = self.pool.lookup(block_hash)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def allocate(self, request: Request, computed: list[int], num_blocks: int, *, num_spare: int = 0) -> bool:
        """Give a request without blocks its first `num_blocks`: those in `computed`, the rest new. False, and nothing
        changed, if they and `num_spare` more are not free."""
        num_new = num_blocks - len(computed)
        num_revived = sum(map(self.pool.is_free, computed))
        if num_new + num_spare > self.pool.num_free - num_revived:
            return False
        self.pool.touch(computed)
        request.block_ids = computed + self.pool.allocate(num_new)
        request.num_registered_blocks = len(computed)
        return True

    def grow(self, request: Request) -> int | None:
        """Append one block to a request's table. None, and nothing changed, if no block is free."""
        if self.pool.num_free == 0:
            return None
        (block_id,) = self.pool.allocate(1)
        request.block_ids.append(block_id)
        return block_id

    def register_computed(self, request: Request) -> None:
        """Make the blocks findable that the request's computed tokens have filled since the last call."""
        num_full = request.num_computed_tokens // self.block_size
        if not self.pool.enable_caching or num_full <= request.num_registered_blocks:
            return
        extend_block_hashes(
            request.block_hashes, request.root_hash, request.all_token_ids, self.block_size, num_full * self.block_size
        )
        for index in range(request.num_registered_blocks, num_full):
            self.pool.register(request.block_ids[index], request.block_hashes[index])
        request.num_registered_blocks = num_full

    def free(self, request: Request) -> None:
        """Take all blocks from a request; what it computed stays findable."""
        self.register_computed(request)
        self.pool.release(request.block_ids)
        request.block_ids = []
        request.num_registered_blocks = 0
