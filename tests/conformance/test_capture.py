"""A captured forward gives what its ops give one by one, bit for bit, for every number of rows and samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from headrace.model.ops import Activation, AttentionSpec, Backend, Ops, Step, StepShape, Weight
from tests.conformance.batches import normal, step_inputs, stored

VOCAB, HIDDEN = 50, 24
SPEC = AttentionSpec(0, num_heads=1, num_kv_heads=1, head_dim=HIDDEN, scale=HIDDEN**-0.5)


def shape_for(num_tokens: int, num_requests: int) -> StepShape:
    return StepShape(
        max_num_tokens=num_tokens,
        max_num_requests=num_requests,
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
