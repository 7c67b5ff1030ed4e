"""The worked example of the documentation: prompt 32, block size 16, max_tokens 10, alone.

One prefill and nine decode forwards, 41 KV positions, 3 blocks; the first sampled token (index 32) goes to block 2,
slot 0.
"""

from __future__ import annotations

from headrace.simulation.hash_model import hash_tokens
from tests.unit.core.engines import Engine


def test_worked_example():
    engine = Engine(block_size=16, num_blocks=8, budget=64)
    prompt = list(range(32))
    engine.add("a", prompt, 10)
    engine.run()

    *steps, last = engine.executor.steps
    assert [s.num_scheduled_tokens["a"] for s in steps] == [32] + 9 * [1]
    assert (last.num_scheduled_tokens, last.finished_req_ids) == ({}, ["a"])  # only tells the worker to drop the row

    (new,) = steps[0].scheduled_new_reqs
    assert new.block_ids == [[0, 1]]
    assert (steps[1].scheduled_cached_reqs.req_ids, steps[1].scheduled_cached_reqs.new_block_ids) == (["a"], [[[2]]])
    assert all(s.scheduled_cached_reqs.req_ids == [] for s in steps[2:])

    answer = hash_tokens(prompt, 10)
    assert engine.tokens("a") == answer
    written = {slot for slot, token in enumerate(engine.executor.slots) if token is not None}
    assert written == set(range(41))
    assert engine.executor.slots[2 * 16] == answer[0]
