"""A captured forward gives what its ops give one by one, bit for bit, for every number of rows and samples.

And with Gemma 2, whose ops Llama does not have, both give transformers' logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from headrace.model.ops import Activation, AttentionSpec, Backend, Ops, Step, StepShape, Weight
from tests.conformance.batches import normal, step_inputs, stored
from tests.conformance.gemma2 import CONFIG, Gemma2, make_reference
from tests.conformance.implementations import Implementation

VOCAB, HIDDEN = 50, 24
SPEC = AttentionSpec(0, num_heads=1, num_kv_heads=1, head_dim=HIDDEN, scale=HIDDEN**-0.5)


def shape_for(num_tokens: int, num_requests: int) -> StepShape:
    return StepShape(
        max_num_tokens=num_tokens,
        max_num_samples=num_requests,
        max_model_len=64,
        num_threads=2,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        vocab_size=VOCAB,
        attention=SPEC,
    )


@dataclass(frozen=True)
class Embedder:
    """No layers: a token's logits are those of its embedding."""

    table: Weight
    norm: Weight

    def forward(self, ops: Ops, step: Step) -> Activation:
        x = ops.take_rows(ops.embed(step.token_ids, self.table), step.sample_rows)
        return ops.linear(ops.rms_norm(x, self.norm, 1e-5), self.table)


@pytest.mark.parametrize("num_samples", [0, 1, 64, 65, 150, 200])
def test_every_sample_has_its_own_logits(backend: Backend, num_samples: int) -> None:
    """Logits are computed some rows at a time, and there may be more samples than that."""
    program = Embedder(
        backend.memory.pack_matrix([stored(normal(1, VOCAB, HIDDEN))]),
        backend.memory.pack_vector(stored(normal(2, HIDDEN))),
    )
    backend.memory.allocate_kv_cache([SPEC], 200, 16)
    graph = backend.capture(program.forward, [SPEC], shape_for(200, 200))
    inputs = step_inputs([range(1)] * 200, np.zeros((200, 1), np.int32), 16, range(200)[::-1][:num_samples])
    inputs.token_ids[:] = np.random.default_rng(3).integers(0, VOCAB, 200)
    logits = np.asarray(graph.replay(inputs))
    assert logits.shape == (num_samples, VOCAB)
    expected = program.forward(backend.ops, backend.begin_step(inputs))
    assert logits.tobytes() == np.asarray(expected).tobytes()


GEMMA_LENGTH = 100
GEMMA_STEPS = ((range(30), range(70)), (range(30, 90), range(70, 71)), (range(90, 91), range(71, GEMMA_LENGTH)))
GEMMA_BOUNDS = {"float32": 5e-6, "bfloat16": 2e-2}  # of the largest logit; keys, values and maybe rows are rounded


def test_gemma2(implementation: Implementation, backend: Backend) -> None:
    """Norms after blocks, gelu, softcaps, a window, all tokens sampled, in steps that mix prefill and decode."""
    reference = make_reference()
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.from_numpy(implementation.as_stored(parameter.numpy())))
    program = Gemma2(reference, backend.memory)
    backend.memory.allocate_kv_cache(program.attention_layers, 14, 16)
    tables = np.random.default_rng(0).permutation(14).astype(np.int32).reshape(2, 7)
    tokens = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (2, GEMMA_LENGTH)).astype(np.int32)
    shape = StepShape(
        max_num_tokens=128,
        max_num_samples=128,
        max_model_len=112,
        num_threads=2,
        hidden_size=CONFIG.hidden_size,
        intermediate_size=CONFIG.intermediate_size,
        vocab_size=CONFIG.vocab_size,
        attention=program.attention_layers[0],
    )
    graph = backend.capture(program.forward, program.attention_layers, shape)
    with torch.no_grad():
        expected = reference(torch.from_numpy(tokens).long()).logits.numpy()
    for ranges in GEMMA_STEPS:
        inputs = step_inputs(ranges, tables, 16, range(sum(len(rows) for rows in ranges)))
        inputs.token_ids[:] = np.concatenate([tokens[i, rows.start : rows.stop] for i, rows in enumerate(ranges)])
        logits = np.asarray(graph.replay(inputs))
        by_ops = np.asarray(program.forward(backend.ops, backend.begin_step(inputs)))
        assert logits.tobytes() == by_ops.tobytes()
        of_step = np.concatenate([expected[i, rows.start : rows.stop] for i, rows in enumerate(ranges)])
        assert np.abs(logits - of_step).max() <= GEMMA_BOUNDS[implementation.dtype] * np.abs(expected).max()
