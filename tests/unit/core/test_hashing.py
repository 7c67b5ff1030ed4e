"""Names of blocks: everything that a block's keys depend on is in its hash, and nothing else."""

from headrace.core.kv_cache.hashing import extend_block_hashes, hash_block, root_hash

ROOT = root_hash(None)


def test_128_bits():
    assert len(ROOT) == len(root_hash("salt")) == len(hash_block(ROOT, [1, 2])) == 16


def test_roots_differ_by_salt():
    assert len({root_hash(salt) for salt in (None, "", "none", "a", "b")}) == 5
    assert root_hash("a") == root_hash("a")


def test_a_block_is_its_parent_and_its_tokens_in_order():
    names = {
        hash_block(ROOT, [1, 2]),
        hash_block(ROOT, [2, 1]),
        hash_block(ROOT, [1, 3]),
        hash_block(root_hash("a"), [1, 2]),
        hash_block(hash_block(ROOT, [1, 2]), [1, 2]),
        ROOT,
    }
    assert len(names) == 6


def test_only_full_blocks_of_the_stated_tokens():
    tokens = list(range(10))
    for num_tokens, num_blocks in ((0, 0), (3, 0), (4, 1), (7, 1), (8, 2), (10, 2)):
        hashes: list[bytes] = []
        extend_block_hashes(hashes, ROOT, tokens, 4, num_tokens)
        assert len(hashes) == num_blocks
    assert hashes == [hash_block(ROOT, [0, 1, 2, 3]), hash_block(hash_block(ROOT, [0, 1, 2, 3]), [4, 5, 6, 7])]


def test_bit_by_bit_is_all_at_once():
    tokens = list(range(20))
    at_once: list[bytes] = []
    extend_block_hashes(at_once, ROOT, tokens, 4, 20)
    grown: list[bytes] = []
    for num_tokens in (3, 4, 4, 9, 17, 20):
        extend_block_hashes(grown, ROOT, tokens, 4, num_tokens)
    assert grown == at_once
    assert len(grown) == 5
