"""One step in two calls: `execute_model` brings the rows up to date and computes logits, `sample_tokens` chooses."""

from __future__ import annotations

import numpy as np

from headrace.config.resolved import HeadraceConfig
from headrace.contracts.model_runner import ModelRunnerOutput
from headrace.contracts.scheduler import SchedulerOutput
from headrace.model.ops import Activation, Backend, Graph
from headrace.worker.input_batch import InputBatch
from headrace.worker.inputs import ScheduledRows, gather_sampling, gather_step
from headrace.worker.logprobs import token_logprobs
from headrace.worker.prompt_logprobs import with_prompt_rows


class ModelRunner:
    def __init__(self, config: HeadraceConfig, backend: Backend, graph: Graph) -> None:
        facts = config.model.facts
        self._backend = backend
        self._graph = graph
        self._batch = InputBatch(
            config.scheduler.max_num_seqs,
            config.model.max_model_len,
            config.cache.block_size,
            # A checkpoint may name ids that its model cannot give.
            [token_id for token_id in facts.eos_token_ids if token_id < facts.vocab_size],
        )
        self._pending: tuple[ScheduledRows, Activation] | None = None  # between the two calls of a step

    def execute_model(self, scheduled: SchedulerOutput) -> None:
        self._update_rows(scheduled)
        if not scheduled.total_num_scheduled_tokens:
            self._pending = None
            return
        step_rows, inputs = gather_step(self._batch, scheduled.num_scheduled_tokens)
        with self._backend.running():
            logits = self._graph.replay(inputs)
        self._batch.num_computed_tokens[step_rows.rows] = inputs.context_lens
        self._pending = step_rows, logits

    def sample_tokens(self) -> ModelRunnerOutput:
        """The tokens of the step that `execute_model` has computed. They are appended to their rows."""
        if self._pending is None:
            return ModelRunnerOutput([], [])
        (step_rows, logits), self._pending = self._pending, None
        rows = step_rows.rows[step_rows.samples]
        inputs = gather_sampling(self._batch, rows)
        if step_rows.prompt is not None:
            inputs = with_prompt_rows(inputs, step_rows.prompt)
        with self._backend.running():
            sampled = self._backend.sampler.sample(logits, inputs)
        token_ids = sampled.token_ids[: len(rows)]
        self._batch.append_tokens(rows, token_ids)
        req_ids = [step_rows.req_ids[place] for place in step_rows.samples]
        output = ModelRunnerOutput(req_ids, token_ids.tolist())
        if inputs.logprobs is not None and sampled.logprobs is not None:
            found = token_logprobs(sampled.logprobs)
            num_sampled = np.count_nonzero(inputs.logprobs.rows < len(rows))
            places = inputs.logprobs.rows[:num_sampled].tolist()
            output.logprobs = dict(zip(map(req_ids.__getitem__, places), found, strict=False))
            if step_rows.prompt is not None:
                output.prompt_logprobs = step_rows.prompt.by_request(found[num_sampled:])
        return output

    def _update_rows(self, scheduled: SchedulerOutput) -> None:
        batch = self._batch
        for req_id in scheduled.preempted_req_ids:
            batch.remove(req_id)
        for req_id in scheduled.finished_req_ids:
            batch.remove(req_id)
        for request in scheduled.scheduled_new_reqs:
            batch.add(request)
        cached = scheduled.scheduled_cached_reqs
        for req_id, block_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            batch.block_table.append(batch.rows[req_id], block_ids[0])
