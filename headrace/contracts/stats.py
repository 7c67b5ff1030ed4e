"""Numbers about the engine core, sent with its outputs."""

from __future__ import annotations

import msgspec


class SchedulerStats(msgspec.Struct, array_like=True, gc=False):
    """Gauges are as of now; counters count since the engine core started."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0  # 0..1: blocks in use over all blocks
    prefix_cache_queries: int = 0  # counter: known tokens of new requests, looked up
    prefix_cache_hits: int = 0  # counter: of those, tokens found
    num_preemptions: int = 0  # counter
    step_counter: int = 0  # counter
    longest_wait: float = 0.0  # seconds that the request which has waited longest has been waiting now
