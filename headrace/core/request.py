"""`Request`: the one authoritative record of a sequence in the engine core, and the states it passes through."""

from __future__ import annotations

import enum
from array import array
from collections.abc import Collection
from functools import lru_cache

from headrace.contracts.engine import EngineCoreEvent, EngineCoreRequest, FinishReason
from headrace.contracts.model_runner import TokenLogprobs
from headrace.core.kv_cache.hashing import BlockHash, TokenIds, extend_block_hashes, root_hash


class RequestStatus(enum.IntEnum):
    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5

    @property
    def is_finished(self) -> bool:
        return self > RequestStatus.PREEMPTED


_S = RequestStatus

LEGAL_MOVES: dict[RequestStatus, frozenset[RequestStatus]] = {
    _S.WAITING: frozenset({_S.RUNNING, _S.FINISHED_ABORTED}),
    _S.RUNNING: frozenset({_S.PREEMPTED, _S.FINISHED_STOPPED, _S.FINISHED_LENGTH_CAPPED, _S.FINISHED_ABORTED}),
    _S.PREEMPTED: frozenset({_S.RUNNING, _S.FINISHED_ABORTED}),
} | {status: frozenset() for status in RequestStatus if status.is_finished}

FINISH_REASONS: dict[RequestStatus, FinishReason] = {
    _S.FINISHED_STOPPED: FinishReason.STOP,
    _S.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    _S.FINISHED_ABORTED: FinishReason.ABORT,
}


@lru_cache(maxsize=64)
def one_of_equals(token_ids: frozenset[int]) -> frozenset[int]:
    """The same object for equal sets: the step loop looks into it for every request, and most have the same stops. Sets
    of their own would be fetched from memory one by one."""
    return token_ids


class Request:
    """A sequence: its tokens, how far it is computed, the blocks that it holds.

    A request that arrives with output (moved from another engine) is no special case: its known tokens are simply more
    than its prompt, as after a preemption.
    """

    __slots__ = (
        "all_token_ids",
        "arrival_order",
        "block_hashes",
        "block_ids",
        "blocked_at",
        "client_index",
        "due_slot",
        "eos_token_ids",
        "events",
        "last_step",
        "max_total_tokens",
        "min_total_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_passed",
        "num_preemptions",
        "num_prompt_tokens",
        "num_registered_blocks",
        "priority",
        "prompt_logprobs",
        "request_id",
        "root_hash",
        "sampling_params",
        "status",
        "stop_token_ids",
        "waits_since",
    )

    def __init__(
        self, message: EngineCoreRequest, *, eos_token_ids: Collection[int], max_model_len: int, block_size: int | None
    ) -> None:
        """`block_size` None: no prefix cache, no hashes."""
        params = message.sampling_params
        self.request_id = message.request_id
        self.client_index = message.client_index
        self.sampling_params = params
        self.status = RequestStatus.WAITING
        self.priority = message.priority  # lower goes first
        self.arrival_order = 0  # set by the scheduler when it takes the request
        self.waits_since = 0  # the step in which its wait began
        self.num_passed = 0  # how often requests behind it were started before it
        self.blocked_at: int | None = None  # the pool's num_releases when its blocks were not to be had
        self.events: tuple[EngineCoreEvent, ...] = ()  # since its last output

        self.all_token_ids: TokenIds = array("i", message.prompt_token_ids)
        self.all_token_ids.extend(message.output_token_ids)
        self.num_prompt_tokens = len(message.prompt_token_ids)
        self.num_computed_tokens = 0
        self.max_total_tokens = min(self.num_prompt_tokens + (params.max_tokens or max_model_len), max_model_len)
        self.min_total_tokens = self.num_prompt_tokens + params.min_tokens
        self.eos_token_ids = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self.stop_token_ids = one_of_equals(self.eos_token_ids.union(params.stop_token_ids))  # everything that ends it

        self.block_ids: list[int] = []
        self.num_registered_blocks = 0  # of block_ids, how many from the beginning are findable
        self.block_hashes: list[BlockHash] = []  # of the full blocks of all_token_ids, as far as known
        self.root_hash = root_hash(message.cache_salt)
        if block_size is not None:
            extend_block_hashes(
                self.block_hashes, self.root_hash, self.all_token_ids, block_size, len(self.all_token_ids)
            )
        self.due_slot: int | None = None  # where the scheduler's growth wheel holds it
        self.last_step: int | None = None  # the step that gives it its last token, if nothing ends it before
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        # Of the prompt, as far as it is computed; None where nobody wants them, or they have been told.
        self.prompt_logprobs: list[TokenLogprobs] | None = None
        if params.prompt_logprobs is not None and not message.output_token_ids:
            self.prompt_logprobs = []

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output so far."""
        return len(self.all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.all_token_ids) - self.num_prompt_tokens

    def note_decoded(self) -> None:
        """While a request decodes, all but its last token is computed: the number is written when somebody is about to
        look at it, and not in every step."""
        self.num_computed_tokens = len(self.all_token_ids) - 1

    @property
    def max_positions(self) -> int:
        """Most positions whose keys and values are ever needed: the last token is sampled but never computed."""
        return self.max_total_tokens - 1

    def move_to(self, status: RequestStatus) -> None:
        if status not in LEGAL_MOVES[self.status]:
            raise RuntimeError(f"request {self.request_id} cannot go from {self.status.name} to {status.name}")
        self.status = status
