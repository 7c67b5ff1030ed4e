"""The forward as something to replay. A backend that records does so here, once, for any step up to the largest."""

from __future__ import annotations

from headrace.config.resolved import HeadraceConfig
from headrace.model.ops import Backend, Graph
from headrace.model.weights import Program
from headrace.worker.memory import largest_step


def capture_forward(config: HeadraceConfig, backend: Backend, program: Program) -> Graph:
    layers = program.attention_layers
    return backend.capture(program.forward, layers, largest_step(config, layers))
