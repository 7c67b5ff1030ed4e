"""The counter that moves while a step is computed, so that a watcher can tell a long step from a dead one."""

from __future__ import annotations

import numpy as np

from headrace.backends.native.backend import NativeBackend
from tests.conformance.batches import normal, step_inputs, stored
from tests.conformance.test_capture import HIDDEN, SPEC, VOCAB, Embedder, shape_for


def test_each_op_of_a_step_moves_the_progress_counter() -> None:
    backend = NativeBackend(num_threads=2)
    program = Embedder(
        backend.memory.pack_matrix([stored(normal(1, VOCAB, HIDDEN))]),
        backend.memory.pack_vector(stored(normal(2, HIDDEN))),
    )
    backend.memory.allocate_kv_cache([SPEC], 4, 16)
    graph = backend.capture(program.forward, [SPEC], shape_for(8, 8))
    inputs = step_inputs([range(3)], np.zeros((1, 1), np.int32), 16, [2])
    assert backend.progress == 0
    for step in (1, 2):
        graph.replay(inputs)
        assert backend.progress == step * graph.num_ops
    assert graph.num_ops == 3  # embed, take_rows, rms_norm; the product belongs to the logits
    backend.close()
