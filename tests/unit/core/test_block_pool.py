"""The pool of blocks: references, the order of the free queue, what stays findable."""

import pytest

from headrace.core.kv_cache.block_pool import BlockPool
from headrace.errors import InvariantError


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(4, enable_caching=True)


def test_blocks_come_in_order_and_once(pool):
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(1) == [3]
    with pytest.raises(KeyError):
        pool.allocate(1)


def test_free_and_usage(pool):
    assert (pool.num_free, pool.usage) == (4, 0.0)
    pool.allocate(1)
    assert (pool.num_free, pool.usage) == (3, 0.25)
    pool.allocate(3)
    assert (pool.num_free, pool.usage) == (0, 1.0)


def test_the_end_of_a_sequence_is_reused_before_its_beginning(pool):
    first, second = pool.allocate(2), pool.allocate(2)
    pool.release(first)
    pool.release(second)
    assert pool.allocate(4) == [1, 0, 3, 2]


def test_a_block_is_free_when_its_last_reference_goes(pool):
    (block_id,) = pool.allocate(1)
    assert not pool.is_free(block_id)
    assert not pool.is_shared(block_id)
    pool.touch([block_id])
    assert pool.is_shared(block_id)
    pool.release([block_id])
    assert (pool.num_free, pool.is_free(block_id), pool.is_shared(block_id)) == (3, False, False)
    pool.release([block_id])
    assert (pool.num_free, pool.is_free(block_id)) == (4, True)


def test_a_free_block_is_found_and_taken_back_out_of_the_queue(pool):
    first, second = pool.allocate(2)
    pool.register(first, b"one")
    pool.register(second, b"two")
    pool.release([first, second])
    assert (pool.lookup(b"one"), pool.lookup(b"two"), pool.lookup(b"three")) == (first, second, None)
    pool.touch([first])
    assert pool.num_free == 3
    assert first not in pool.allocate(3)
    assert (pool.lookup(b"one"), pool.lookup(b"two")) == (first, None)  # the other was handed out again
    pool.check([[first], [1, 2, 3]])


def test_of_two_blocks_with_the_same_content_the_first_stays_known(pool):
    first, second = pool.allocate(2)
    pool.register(first, b"same")
    pool.register(second, b"same")
    assert pool.lookup(b"same") == first
    pool.release([second])
    pool.allocate(3)  # the second is handed out again
    assert pool.lookup(b"same") == first
    pool.check([[first], [1, 2, 3]])


def test_nothing_is_findable_without_caching():
    pool = BlockPool(2, enable_caching=False)
    (block_id,) = pool.allocate(1)
    pool.register(block_id, b"one")
    assert pool.lookup(b"one") is None


def test_releases_are_counted(pool):
    blocks = pool.allocate(2)
    assert pool.num_releases == 0
    pool.release(blocks[:1])
    pool.release(blocks[1:])
    assert pool.num_releases == 2


def test_reset_only_while_no_block_is_in_use(pool):
    first, second = pool.allocate(2)
    pool.register(first, b"one")
    pool.release([first])
    assert pool.reset_prefix_cache() is False
    assert pool.lookup(b"one") == first
    pool.release([second])
    assert pool.reset_prefix_cache() is True
    assert pool.lookup(b"one") is None
    pool.check([])
    pool.allocate(4)
    pool.check([[0, 1, 2, 3]])


def test_check_passes_what_is_right(pool):
    pool.check([])
    first, second = pool.allocate(2)
    pool.register(first, b"one")
    pool.touch([first])
    pool.check([[first], [first, second]])


def lose_a_reference(pool: BlockPool) -> None:
    pool._ref_counts[0] -= 1


def free_a_used_block(pool: BlockPool) -> None:
    pool._free[0] = None


def lose_a_free_block(pool: BlockPool) -> None:
    pool._free.popitem()


def find_without_hash(pool: BlockPool) -> None:
    pool._hashes[0] = None


def hash_without_find(pool: BlockPool) -> None:
    pool._cached.clear()


@pytest.mark.parametrize(
    ("corrupt", "words"),
    [
        (lose_a_reference, "block 0 has 1 references, of which 2 exist"),
        (free_a_used_block, "free queue"),
        (lose_a_free_block, "free queue"),
        (find_without_hash, "prefix cache"),
        (hash_without_find, "prefix cache"),
    ],
)
def test_check_finds(pool, corrupt, words):
    block_ids = pool.allocate(2)
    pool.touch([block_ids[0]])
    pool.register(block_ids[0], b"one")
    tables = [block_ids, block_ids[:1]]
    pool.check(tables)
    corrupt(pool)
    with pytest.raises(InvariantError, match=words):
        pool.check(tables)


def test_check_finds_a_table_that_nobody_counted(pool):
    with pytest.raises(InvariantError, match="block 2 has 0 references, of which 1 exist"):
        pool.check([[2]])
