"""Names of blocks: everything that a block's keys depend on is in its hash, and nothing else."""

from array import array
from collections.abc import Iterable

from headrace.core.kv_cache.hashing import TokenIds, extend_block_hashes, hash_block, root_hash

ROOT = root_hash(None)


def ids(token_ids: Iterable[int]) -> TokenIds:
    return array("i", token_ids)


def test_128_bits():
    assert len(ROOT) == len(root_hash("salt")) == len(hash_block(ROOT, ids([1, 2]))) == 16


def test_roots_differ_by_salt():
    assert len({root_hash(salt) for salt in (None, "", "none", "a", "b")}) == 5
    assert root_hash("a") == root_hash("a")


def test_a_block_is_its_parent_and_its_tokens_in_order():
    names = {
        hash_block(ROOT, ids([1, 2])),
        hash_block(ROOT, ids([2, 1])),
        hash_block(ROOT, ids([1, 3])),
        hash_block(root_hash("a"), ids([1, 2])),
        hash_block(hash_block(ROOT, ids([1, 2])), ids([1, 2])),
        ROOT,
    }
    assert len(names) == 6


def test_only_full_blocks_of_the_stated_tokens():
    tokens = ids(range(10))
    for num_tokens, num_blocks in ((0, 0), (3, 0), (4, 1), (7, 1), (8, 2), (10, 2)):
        hashes: list[bytes] = []
        extend_block_hashes(hashes, ROOT, tokens, 4, num_tokens)
        assert len(hashes) == num_blocks
    first = hash_block(ROOT, ids([0, 1, 2, 3]))
    assert hashes == [first, hash_block(first, ids([4, 5, 6, 7]))]


def test_bit_by_bit_is_all_at_once():
    tokens = ids(range(20))
    at_once: list[bytes] = []
    extend_block_hashes(at_once, ROOT, tokens, 4, 20)
    grown: list[bytes] = []
    for num_tokens in (3, 4, 4, 9, 17, 20):
        extend_block_hashes(grown, ROOT, tokens, 4, num_tokens)
    assert grown == at_once
    assert len(grown) == 5
