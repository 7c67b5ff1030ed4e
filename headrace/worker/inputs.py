"""From rows of the `InputBatch` to a step's arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.model.ops import SamplingInputs, StepInputs
from headrace.worker.input_batch import InputBatch
from headrace.worker.prompt_logprobs import PromptRows, gather_prompt_rows


@dataclass(frozen=True)
class ScheduledRows:
    """The rows of a step in the order of its batch, and those of them that sample."""

    req_ids: list[str]
    rows: NDArray[np.intp]  # [num_requests]
    samples: NDArray[np.intp]  # [num_samples], places in `rows`
    prompt: PromptRows | None = None  # rows of logits that come after those of the samples


def gather_step(batch: InputBatch, num_scheduled_tokens: dict[str, int]) -> tuple[ScheduledRows, StepInputs]:
    """A request samples when the step computes the last of its known tokens."""
    num_requests = len(num_scheduled_tokens)
    req_ids = list(num_scheduled_tokens)
    rows = np.fromiter(map(batch.rows.__getitem__, req_ids), np.intp, num_requests)
    counts = np.fromiter(num_scheduled_tokens.values(), np.int32, num_requests)
    query_starts = np.zeros(num_requests + 1, np.int32)
    np.cumsum(counts, out=query_starts[1:])
    computed = batch.num_computed_tokens[rows]
    context_lens = computed + counts
    samples = np.flatnonzero(context_lens == batch.num_tokens[rows])

    request_of_token = np.repeat(np.arange(num_requests), counts)
    row_of_token = rows[request_of_token]
    positions = np.arange(query_starts[-1], dtype=np.int32) + (computed - query_starts[:-1])[request_of_token]
    num_blocks = -(-int(context_lens.max(initial=0)) // batch.block_table.block_size)
    sample_rows = query_starts[1:][samples] - 1
    prompt = None
    if batch.sampling.prompt_logprobs:
        prompt = gather_prompt_rows(batch, req_ids, rows, computed, counts)
        sample_rows = np.concatenate([sample_rows, prompt.token_rows])
    inputs = StepInputs(
        token_ids=batch.token_ids[row_of_token, positions],
        positions=positions,
        slots=batch.block_table.slots(row_of_token, positions),
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=batch.block_table.blocks[rows, :num_blocks],
        sample_rows=sample_rows,
    )
    return ScheduledRows(req_ids, rows, samples, prompt), inputs


def gather_sampling(batch: InputBatch, rows: NDArray[np.intp]) -> SamplingInputs:
    """For the rows that sample. What is random belongs to the place of the token in the output."""
    positions = (batch.num_tokens[rows] - batch.num_prompt_tokens[rows]).astype(np.int64)
    return batch.sampling.gather(rows, positions)
