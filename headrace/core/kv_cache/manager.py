"""The KV cache as the scheduler sees it: does a request fit, what does it hold, what is already computed."""

from __future__ import annotations

from headrace.core.kv_cache.block_pool import BlockPool
from headrace.core.kv_cache.hashing import BlockHash, TokenIds, extend_block_hashes
from headrace.core.request import Request


class KVCacheManager:
    """Block tables of requests over one pool. Positions are token positions in a request, counted from 0."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_caching: bool, verify_hits: bool = False) -> None:
        """`verify_hits`: trust no hash, compare the tokens of each block that is found and of all before it."""
        self.block_size = block_size
        self._verifier = HitVerifier() if verify_hits else NoVerifier()
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
        is left to be computed, as its output is what the request waits for; and all of them where logprobs of the
        prompt are wanted. Takes no reference: use the answer in `allocate` before anything else is allocated."""
        if not self.pool.enable_caching or request.prompt_logprobs is not None:
            return []
        block_ids: list[int] = []
        for block_hash in request.block_hashes[: (request.num_tokens - 1) // self.block_size]:
            block_id = self.pool.lookup(block_hash)
            if block_id is None:
                break
            before = block_ids[-1] if block_ids else request.root_hash
            if not self._verifier.confirms(block_id, before, self._tokens_of(request, len(block_ids))):
                break
            block_ids.append(block_id)
        return block_ids

    def num_missing(self, computed: list[int], num_blocks: int) -> int:
        """How many more blocks would have to be free to hold `num_blocks`, of which `computed` are there already; 0 or
        less if they are free."""
        num_revived = sum(map(self.pool.is_free, computed))
        return num_blocks - len(computed) - (self.pool.num_free - num_revived)

    def num_freed_by(self, request: Request, keep: list[int]) -> int:
        """How many blocks become free when this request gives up its own, not counting those in `keep`."""
        return sum(not self.pool.is_shared(b) for b in set(request.block_ids).difference(keep))

    def allocate(self, request: Request, computed: list[int], num_blocks: int, *, num_spare: int = 0) -> bool:
        """Give a request without blocks its first `num_blocks`: those in `computed`, the rest new. False, and nothing
        changed, if they and `num_spare` more are not free."""
        if self.num_missing(computed, num_blocks + num_spare) > 0:
            return False
        self.pool.touch(computed)
        request.block_ids = computed + self.pool.allocate(num_blocks - len(computed))
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
            before = request.block_ids[index - 1] if index else request.root_hash
            self._verifier.remember(request.block_ids[index], before, self._tokens_of(request, index))
            self.pool.register(request.block_ids[index], request.block_hashes[index])
        request.num_registered_blocks = num_full

    def free(self, request: Request) -> None:
        """Take all blocks from a request; what it computed stays findable."""
        self.register_computed(request)
        self.pool.release(request.block_ids)
        request.block_ids = []
        request.num_registered_blocks = 0

    def _tokens_of(self, request: Request, index: int) -> TokenIds:
        """The tokens of a request's block."""
        return request.all_token_ids[index * self.block_size : (index + 1) * self.block_size]


class Content:
    """What a block holds: its tokens and the content before it; before the first block is the root hash of the salt."""

    __slots__ = ("before", "token_ids")

    def __init__(self, before: Content | BlockHash, token_ids: TokenIds) -> None:
        self.before = before
        self.token_ids = token_ids


class HitVerifier:
    """Knows the content of every registered block, with all that is before it: the same tokens after another beginning,
    or under another salt, have other keys and values."""

    def __init__(self) -> None:
        self._contents: dict[int, Content] = {}
        self.num_false_hits = 0

    def remember(self, block_id: int, before: int | BlockHash, token_ids: TokenIds) -> None:
        """`before` is the request's block before this one, or its root hash."""
        self._contents[block_id] = Content(self._content(before), token_ids)

    def confirms(self, block_id: int, before: int | BlockHash, token_ids: TokenIds) -> bool:
        is_true = is_same(self._contents.get(block_id), Content(self._content(before), token_ids))
        self.num_false_hits += not is_true
        return is_true

    def _content(self, before: int | BlockHash) -> Content | BlockHash:
        return self._contents[before] if isinstance(before, int) else before


def is_same(a: Content | BlockHash | None, b: Content | BlockHash | None) -> bool:
    """Usually two contents have the very same one before them, and then the comparison is over."""
    while a is not b:
        if not isinstance(a, Content) or not isinstance(b, Content):
            return a == b
        if a.token_ids != b.token_ids:
            return False
        a, b = a.before, b.before
    return True


class NoVerifier:
    """128 bits of BLAKE2b are trusted."""

    def remember(self, block_id: int, before: int | BlockHash, token_ids: TokenIds) -> None:
        pass

    def confirms(self, block_id: int, before: int | BlockHash, token_ids: TokenIds) -> bool:
        return True
