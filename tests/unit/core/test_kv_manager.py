"""Block tables: how much a request needs, what of it is computed already, what it leaves behind."""

from array import array

import pytest

from headrace.core.kv_cache import hashing
from headrace.core.kv_cache.manager import Content, KVCacheManager, is_same
from headrace.core.request import Request
from tests.unit.core.schedulers import Steps, make_request

PROMPT = list(range(10))  # two full blocks of 4, and 2 tokens


def manager(num_blocks: int = 8, **more: bool) -> KVCacheManager:
    return KVCacheManager(num_blocks, 4, enable_caching=more.pop("caching", True), **more)


def computed_by(kv: KVCacheManager, request: Request, num_tokens: int) -> Request:
    """The request, run so far without any hit."""
    assert kv.allocate(request, [], kv.blocks_for(request.num_tokens))
    request.num_computed_tokens = num_tokens
    kv.register_computed(request)
    return request


def test_blocks_for_positions():
    assert [manager().blocks_for(n) for n in (0, 1, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("num_computed", "prompt", "expected"),
    [
        (10, [*PROMPT], [0, 1]),
        (7, [*PROMPT], [0]),
        (3, [*PROMPT], []),
        (10, [*PROMPT[:9]], [0, 1]),
        (10, [*PROMPT[:8]], [0]),  # the last token is computed anew
        (10, [*PROMPT[:5]], [0]),
        (10, [*PROMPT[:4]], []),
        (10, [0, 1, 2, 3, 4, 5, 6, 99, 8, 9], [0]),
        (10, [99, 1, 2, 3, 4, 5, 6, 7, 8, 9], []),
    ],
)
def test_the_longest_run_of_computed_blocks(num_computed, prompt, expected):
    kv = manager()
    computed_by(kv, make_request(prompt=PROMPT), num_computed)
    assert kv.find_computed_blocks(make_request("b", prompt)) == expected


def test_a_run_ends_at_the_first_block_that_is_gone():
    kv = manager()
    computed_by(kv, make_request(prompt=PROMPT), 10)
    kv.pool._forget(0)
    assert kv.find_computed_blocks(make_request("b", PROMPT)) == []


def test_nothing_is_found_without_caching():
    kv = manager(caching=False)
    computed_by(kv, make_request(prompt=PROMPT, block_size=None), 10)
    assert kv.find_computed_blocks(make_request("b", PROMPT)) == []


def test_allocate_takes_computed_blocks_and_new_ones():
    kv = manager()
    computed_by(kv, make_request(prompt=PROMPT), 10)
    other = make_request("b", PROMPT)
    assert kv.allocate(other, [0, 1], 4)
    assert other.block_ids == [0, 1, 3, 4]
    assert other.num_registered_blocks == 2
    assert kv.pool.num_free == 3
    kv.pool.check([[0, 1, 2], other.block_ids])


def test_allocate_changes_nothing_where_blocks_are_missing():
    kv = manager(num_blocks=4)
    holder = computed_by(kv, make_request(prompt=PROMPT), 10)
    other = make_request("b", PROMPT)
    assert not kv.allocate(other, [0, 1], 4)
    assert not kv.allocate(other, [0, 1], 3, num_spare=1)
    assert other.block_ids == []
    kv.pool.check([holder.block_ids])
    assert kv.allocate(other, [0, 1], 3)


def test_computed_blocks_that_are_free_count_as_taken():
    """They are not free any more for the rest of the same request."""
    kv = manager(num_blocks=4)
    kv.free(computed_by(kv, make_request(prompt=PROMPT), 10))
    assert kv.pool.num_free == 4
    request = make_request("b", PROMPT)
    computed = kv.find_computed_blocks(request)
    assert [kv.num_missing(computed, n) for n in (2, 4, 5, 7)] == [-2, 0, 1, 3]
    assert not kv.allocate(request, computed, 5)
    assert kv.allocate(request, computed, 4)
    assert kv.pool.num_free == 0


def test_what_a_victim_would_free():
    kv = manager()
    first = computed_by(kv, make_request(prompt=PROMPT), 10)
    assert kv.num_freed_by(first, keep=[]) == 3
    assert kv.num_freed_by(first, keep=[0, 2, 7]) == 1
    second = make_request("b", PROMPT)
    kv.allocate(second, [0, 1], 4)
    assert kv.num_freed_by(first, keep=[]) == 1
    assert kv.num_freed_by(second, keep=[]) == 2


def test_grow_until_nothing_is_left():
    kv = manager(num_blocks=2)
    request = make_request(prompt=3)
    kv.allocate(request, [], 1)
    assert kv.grow(request) == 1
    assert request.block_ids == [0, 1]
    assert kv.grow(request) is None
    assert request.block_ids == [0, 1]


def test_what_a_request_computed_stays_findable_when_it_leaves():
    kv = manager()
    request = make_request(prompt=PROMPT)
    kv.allocate(request, [], 3)
    request.num_computed_tokens = 8
    kv.free(request)
    assert (request.block_ids, request.num_registered_blocks) == ([], 0)
    assert kv.find_computed_blocks(make_request("b", PROMPT)) == [0, 1]
    assert kv.usage == 0.0


def test_usage():
    kv = manager()
    kv.allocate(make_request(prompt=PROMPT), [], 2)
    assert kv.usage == 0.25


def test_output_tokens_name_blocks_too():
    kv = manager()
    request = computed_by(kv, make_request(prompt=PROMPT[:6]), 6)
    request.all_token_ids.extend([6, 7, 8])
    request.num_computed_tokens = 8
    kv.register_computed(request)
    assert kv.find_computed_blocks(make_request("b", PROMPT)) == [0, 1]


# ---- verification of hits --------------------------------------------------------------------------------------------


def test_a_verified_hit_is_a_hit():
    kv = manager(verify_hits=True)
    computed_by(kv, make_request(prompt=PROMPT), 10)
    assert kv.find_computed_blocks(make_request("b", PROMPT)) == [0, 1]
    assert kv._verifier.num_false_hits == 0


def same_names_for_all(monkeypatch) -> None:
    """Hashes that know only how deep a block is: every prompt collides with every other."""
    monkeypatch.setattr(hashing, "hash_block", lambda parent, token_ids: bytes([(parent[0] + 1) % 256]) * 16)


def test_a_false_hit_is_counted_and_not_used(monkeypatch):
    same_names_for_all(monkeypatch)
    steps = Steps(verify=True)
    steps.add("a", PROMPT, 1)
    steps.run()
    other = steps.add("b", [*PROMPT[:4], 99, 98, 97, 96, 95], 1)
    steps.run()
    assert other.num_cached_tokens == 4
    assert steps.scheduler.kv._verifier.num_false_hits == 1
    steps.add("c", list(range(50, 60)), 1)
    steps.run()
    assert steps.outputs["c"][0].num_cached_tokens == 0
    assert steps.scheduler.kv._verifier.num_false_hits == 2


def test_without_verification_a_collision_is_believed(monkeypatch):
    """What the option is for; 128 bits of BLAKE2b do not collide."""
    same_names_for_all(monkeypatch)
    steps = Steps()
    steps.add("a", PROMPT, 1)
    steps.run()
    assert steps.add("b", list(range(50, 60)), 1)
    steps.run()
    assert steps.outputs["b"][0].num_cached_tokens == 8


def test_every_block_of_a_long_hit_is_verified_against_the_one_before_it():
    kv = manager(verify_hits=True)
    prompt = list(range(18))  # four full blocks
    computed_by(kv, make_request(prompt=prompt), 18)
    assert kv.find_computed_blocks(make_request("b", prompt)) == [0, 1, 2, 3]
    assert kv._verifier.num_false_hits == 0


def test_contents_are_the_same_to_the_root():
    def content(*blocks: int, root: bytes = b"root") -> Content:
        before: Content | bytes = root
        for token_id in blocks:
            before = Content(before, array("i", [token_id]))
        return before

    assert is_same(content(1, 2), content(1, 2))
    assert not is_same(content(1, 2), content(3, 2))
    assert not is_same(content(1, 2), content(1, 2, root=b"salt"))
    for shorter, longer in ((content(1), content(1, 1)), (content(1, 1), content(1, 1, 1))):
        assert not is_same(shorter, longer)
        assert not is_same(longer, shorter)
    assert not is_same(None, content(1))
