"""A worker without a model: its next token is a hash of all the context that it can see through its block table.

A wrong block, a lost or doubled token, a stale hit changes the hash, so the tokens of a request computed alone are an
oracle for the same request under any schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from headrace.contracts.model_runner import ModelRunnerOutput
from headrace.contracts.scheduler import SchedulerOutput
from headrace.core.executor.uniproc import Done

VOCAB_SIZE = 1000


def next_token(context: Sequence[int]) -> int:
    digest = blake2b(b"".join(t.to_bytes(4, "little") for t in context), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB_SIZE


def hash_tokens(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The answer computed alone."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@dataclass
class Row:
    tokens: list[int]
    block_ids: list[int]
    num_computed: int


class HashExecutor:
    """Keeps to the worker's contract to the letter, and complains where the scheduler does not."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.slots: list[int | None] = [None] * (num_blocks * block_size)
        self.rows: dict[str, Row] = {}
        self.steps: list[SchedulerOutput] = []

    def load_model(self) -> None:
        pass

    def initialize_kv_cache(self) -> int:
        return self.num_blocks

    def memory_plan(self) -> str:
        return ""

    def shutdown(self) -> None:
        pass

    def execute_model(self, step: SchedulerOutput) -> Done[None]:
        self.steps.append(step)
        for req_id in (*step.preempted_req_ids, *step.finished_req_ids):
            del self.rows[req_id]
        for new in step.scheduled_new_reqs:
            assert new.req_id not in self.rows
            self.rows[new.req_id] = Row(
                new.prompt_token_ids + new.output_token_ids, list(new.block_ids[0]), new.num_computed_tokens
            )
        for req_id, (block_ids,) in zip(
            step.scheduled_cached_reqs.req_ids, step.scheduled_cached_reqs.new_block_ids, strict=True
        ):
            self.rows[req_id].block_ids += block_ids
        assert step.total_num_scheduled_tokens == sum(step.num_scheduled_tokens.values())
        for req_id, num_tokens in step.num_scheduled_tokens.items():
            row = self.rows[req_id]
            assert num_tokens > 0
            for position in range(row.num_computed, row.num_computed + num_tokens):
                self.slots[self._slot(row, position)] = row.tokens[position]
            row.num_computed += num_tokens
            assert row.num_computed <= len(row.tokens)
        return Done(None)

    def sample_tokens(self) -> Done[ModelRunnerOutput]:
        output = ModelRunnerOutput([], [])
        for req_id in self.steps[-1].num_scheduled_tokens:
            row = self.rows[req_id]
            if row.num_computed == len(row.tokens):
                context = [self.slots[self._slot(row, position)] for position in range(row.num_computed)]
                token_id = next_token(context)
                row.tokens.append(token_id)
                output.req_ids.append(req_id)
                output.sampled_token_ids.append(token_id)
        return Done(output)

    def _slot(self, row: Row, position: int) -> int:
        return row.block_ids[position // self.block_size] * self.block_size + position % self.block_size
