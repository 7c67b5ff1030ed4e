"""Names of KV blocks: a hash over everything that the keys and values of a block depend on.

A block's hash covers its tokens and, through its parent's hash, all tokens before it; the first block's parent is a
root made of the request's salt. Each part is tagged and of fixed or stated length, so that no two different inputs
give the same bytes. BLAKE2b with 128 bits: a collision would hand one user another's context, so nothing weaker.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import TypeAlias

BlockHash = bytes  # 16 bytes
TokenIds: TypeAlias = "array[int]"  # of C ints: four bytes for a token, and nothing to follow for whoever reads many

_HASH_BYTES = 16


def root_hash(cache_salt: str | None) -> BlockHash:
    """The parent of a request's first block. Requests with different salts share no block."""
    tagged = b"none" if cache_salt is None else b"salt" + cache_salt.encode()
    return blake2b(tagged, digest_size=_HASH_BYTES, person=b"headrace kv root").digest()


def hash_block(parent: BlockHash, token_ids: TokenIds) -> BlockHash:
    """The hash of one full block after `parent`."""
    return blake2b(parent + token_ids.tobytes(), digest_size=_HASH_BYTES, person=b"headrace kv blk").digest()


def extend_block_hashes(
    hashes: list[BlockHash], root: BlockHash, token_ids: TokenIds, block_size: int, num_tokens: int
) -> None:
    """Append to `hashes` those of all blocks that the first `num_tokens` tokens fill and that are not there yet."""
    parent = hashes[-1] if hashes else root
    for start in range(len(hashes) * block_size, num_tokens - block_size + 1, block_size):
        parent = hash_block(parent, token_ids[start : start + block_size])
        hashes.append(parent)
