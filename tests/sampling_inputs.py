"""`SamplingInputs` for tests of samplers, through the worker's own rows: one dict of wishes for each row of logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headrace.contracts.sampling_params import SamplingParams
from headrace.contracts.scheduler import NewRequestData
from headrace.model.ops import SamplingInputs
from headrace.worker.sampling_rows import SamplingRows


def sampling_inputs(wishes: Sequence[Mapping[str, object]]) -> SamplingInputs:
    """Fields of `SamplingParams`, and: `prompt`, `output` (their tokens), `banned` and `allowed` (ids), `uniform`."""
    rows = SamplingRows(len(wishes), eos_token_ids=())
    for row, wish in enumerate(wishes):
        rows.add(row, _request(f"{row}", **wish))
    inputs = rows.gather(np.arange(len(wishes)), np.zeros(len(wishes), np.int64))
    for row, wish in enumerate(wishes):
        if "uniform" in wish:
            inputs.uniform[row] = wish["uniform"]
    return inputs


def _request(
    name: str,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    allowed: Sequence[int] | None = None,
    banned: Sequence[int] = (),
    uniform: float = 0.5,
    **fields: object,
) -> NewRequestData:
    params = SamplingParams(
        **{"seed": 0, **fields},
        allowed_token_ids=None if allowed is None else tuple(allowed),
        stop_token_ids=tuple(banned),
        min_tokens=1 if len(banned) else 0,
    )
    return NewRequestData(name, list(prompt), list(output), params, [[]], 0)
