"""Logprobs of prompts: what the model thought of each token of a prompt when it had seen those before it.

A step that computes a token of a prompt has the logits of the next one. So such a step has more rows of logits than it
has samples; the sampler is told that in these rows only the token of the prompt may be chosen, and that its logprobs
are wanted. The scheduler sees to it that a step has no more such rows than `SchedulerConfig.max_prompt_logprobs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.contracts.model_runner import TokenLogprobs
from headrace.model.ops import LogitBias, LogprobsWanted, Penalties, SamplingInputs, TokenLists
from headrace.worker.input_batch import InputBatch

Int32 = NDArray[np.int32]
Scalar = TypeVar("Scalar", bound=np.generic)

_EMPTY = np.zeros(0, np.int32)


@dataclass(frozen=True)
class PromptRows:
    """Tokens of a step that are followed by a token of a prompt whose logprobs are wanted. Arrays are `[num_rows]`, one
    request after another."""

    counts: dict[str, int]  # request id -> its number of rows
    token_rows: Int32  # places among the tokens of the step
    next_ids: Int32  # the tokens that follow
    num_top: Int32  # how many of the most probable tokens are wanted beside

    def by_request(self, found: Sequence[TokenLogprobs]) -> dict[str, list[TokenLogprobs]]:
        """`found` has the logprobs of all rows."""
        rest = iter(found)
        return {req_id: [next(rest) for _ in range(count)] for req_id, count in self.counts.items()}


def gather_prompt_rows(
    batch: InputBatch, req_ids: Sequence[str], rows: NDArray[np.intp], computed: Int32, counts: Int32
) -> PromptRows:
    """For a step that computes `counts` tokens of the requests in `rows`, which have `computed` before it."""
    wanted = batch.sampling.prompt_logprobs
    by_request: dict[str, int] = {}
    token_rows, next_ids, num_top = [_EMPTY], [_EMPTY], [_EMPTY]
    step_start = 0
    for req_id, row, start, count in zip(req_ids, rows.tolist(), computed.tolist(), counts.tolist(), strict=True):
        num_rows = min(start + count, int(batch.num_prompt_tokens[row]) - 1) - start
        if row in wanted and num_rows > 0:
            by_request[req_id] = num_rows
            token_rows.append(np.arange(step_start, step_start + num_rows, dtype=np.int32))
            next_ids.append(batch.token_ids[row, start + 1 : start + 1 + num_rows])
            num_top.append(np.full(num_rows, wanted[row], np.int32))
        step_start += count
    return PromptRows(by_request, np.concatenate(token_rows), np.concatenate(next_ids), np.concatenate(num_top))


def with_prompt_rows(inputs: SamplingInputs, prompt: PromptRows) -> SamplingInputs:
    """The same, with rows behind those of the samples in which the choice is made already."""
    num_samples, num_rows = len(inputs.temperature), len(prompt.next_ids)

    def fill(column: NDArray[Scalar], value: float) -> NDArray[Scalar]:
        return np.concatenate([column, np.full(num_rows, value, column.dtype)])

    def without(lists: TokenLists) -> TokenLists:
        return TokenLists(fill(lists.starts, lists.starts[-1]), lists.ids)

    allowed = inputs.allowed or TokenLists(np.zeros(num_samples + 1, np.int32), _EMPTY)
    own_starts = allowed.starts[-1] + np.arange(1, num_rows + 1, dtype=np.int32)
    wanted = inputs.logprobs or LogprobsWanted(_EMPTY, _EMPTY)
    bias, penalties = inputs.bias, inputs.penalties
    return msgspec.structs.replace(
        inputs,
        temperature=fill(inputs.temperature, 0),
        top_k=fill(inputs.top_k, 0),
        top_p=fill(inputs.top_p, 1),
        min_p=fill(inputs.min_p, 0),
        uniform=fill(inputs.uniform, 0),
        allowed=TokenLists(
            np.concatenate([allowed.starts, own_starts]), np.concatenate([allowed.ids, prompt.next_ids])
        ),
        banned=None if inputs.banned is None else without(inputs.banned),
        bias=None if bias is None else LogitBias(without(bias.tokens), bias.values),
        penalties=None
        if penalties is None
        else Penalties(
            fill(penalties.repetition, 1),
            fill(penalties.presence, 0),
            fill(penalties.frequency, 0),
            without(penalties.seen),
            penalties.output_counts,
        ),
        logprobs=LogprobsWanted(
            np.concatenate([wanted.rows, np.arange(num_samples, num_samples + num_rows, dtype=np.int32)]),
            np.concatenate([wanted.num_top, prompt.num_top]),
        ),
    )
