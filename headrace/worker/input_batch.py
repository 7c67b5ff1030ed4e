"""The worker's mirror of the running requests: one row for each, which stays where it is until the request leaves.

Everything that a step needs of a request is a column, so that a step's inputs are gathered by array operations over the
scheduled rows (`inputs.py`) and a request that only decodes costs no Python of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.contracts.scheduler import NewRequestData
from headrace.errors import EngineError
from headrace.worker.block_table import BlockTable
from headrace.worker.sampling_rows import SamplingRows


class InputBatch:
    def __init__(
        self, max_num_seqs: int, max_model_len: int, block_size: int, eos_token_ids: Sequence[int] = ()
    ) -> None:
        self.rows: dict[str, int] = {}  # request id -> row
        self._free = list(range(max_num_seqs - 1, -1, -1))
        self.token_ids = np.zeros((max_num_seqs, max_model_len), np.int32)  # known tokens: prompt, then output
        self.num_tokens = np.zeros(max_num_seqs, np.int32)  # known
        self.num_prompt_tokens = np.zeros(max_num_seqs, np.int32)
        self.num_computed_tokens = np.zeros(max_num_seqs, np.int32)
        self.block_table = BlockTable(max_num_seqs, max_model_len, block_size)
        self.sampling = SamplingRows(max_num_seqs, eos_token_ids)

    def add(self, request: NewRequestData) -> None:
        """Give the request a row. One that returns after a preemption brings the output that it already has."""
        if not self._free or request.req_id in self.rows:
            raise EngineError(f"The worker has no row for request {request.req_id}.")
        row = self.rows[request.req_id] = self._free.pop()
        tokens = request.prompt_token_ids + request.output_token_ids
        self.token_ids[row, : len(tokens)] = tokens
        self.num_tokens[row] = len(tokens)
        self.num_prompt_tokens[row] = len(request.prompt_token_ids)
        self.num_computed_tokens[row] = request.num_computed_tokens
        self.block_table.set(row, request.block_ids[0])
        self.sampling.add(row, request)

    def remove(self, req_id: str) -> None:
        """Free the request's row. One that has none (aborted before it ran) is not a fault."""
        row = self.rows.pop(req_id, None)
        if row is not None:
            self._free.append(row)
            self.sampling.remove(row)

    def append_tokens(self, rows: NDArray[np.intp], token_ids: NDArray[np.int32]) -> None:
        """One sampled token for each of `rows`; it is the row's next input. At the context's end it is not kept."""
        places = self.num_tokens[rows]
        fits = places < self.token_ids.shape[1]
        self.token_ids[rows[fits], places[fits]] = token_ids[fits]
        self.num_tokens[rows] += 1
        self.sampling.note_tokens(rows, token_ids)
