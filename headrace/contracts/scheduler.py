"""Engine core (B) to worker (C): what the next step computes.

A running request that grows by one token inside its last block is named in `num_scheduled_tokens` and nowhere else;
the worker's row for it already has everything. No tensor crosses here.
"""

from __future__ import annotations

import msgspec

from headrace.contracts.sampling_params import SamplingParams

BlockIds = list[list[int]]  # [num_kv_groups][num_blocks]


class NewRequestData(msgspec.Struct, array_like=True, gc=False):
    """A request that gets a row: seen for the first time, or returning after a preemption (then with its output)."""

    req_id: str
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    sampling_params: SamplingParams
    block_ids: BlockIds
    num_computed_tokens: int  # of the known tokens, how many have their KV in `block_ids` already


class CachedRequestData(msgspec.Struct, array_like=True, gc=False):
    """Column-wise news about requests that have a row: only those whose block table grew."""

    req_ids: list[str] = []
    new_block_ids: list[BlockIds] = []  # appended to the row's block table


class SchedulerOutput(msgspec.Struct, array_like=True, gc=False):
    """One step. The worker first drops the rows of preempted and finished requests, then adds the new ones, each of
    which computes at least one token."""

    step: int
    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    preempted_req_ids: list[str]
    finished_req_ids: list[str]
