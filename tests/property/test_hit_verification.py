"""`--verify-prefix-hits` trusts no hash: where hashes collide all the time, the tokens are still right."""

from __future__ import annotations

import msgspec
import pytest

from headrace.core.kv_cache import hashing
from headrace.simulation.generate import make_scenario
from headrace.simulation.shrink import violation_of


def failing_seeds(*, verify_hits: bool) -> list[int]:
    scenarios = [
        msgspec.structs.replace(make_scenario(seed), caching=True, verify_hits=verify_hits) for seed in range(150)
    ]
    return [scenario.seed for scenario in scenarios if violation_of(scenario) is not None]


def test_verified_hits_are_right_though_hashes_collide(monkeypatch: pytest.MonkeyPatch):
    hash_block = hashing.hash_block
    monkeypatch.setattr(hashing, "hash_block", lambda parent, token_ids: bytes([hash_block(parent, token_ids)[0] % 32]))
    assert failing_seeds(verify_hits=False)
    assert not failing_seeds(verify_hits=True)
