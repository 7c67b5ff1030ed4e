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


class InputBatch:
    def __init__(
        self, max_num_seqs: int, max_model_len: int, block_size: int, eos_token_ids: Sequence[int] = ()
    ) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self.rows: dict[str, int] = {}  # request id -> row
        self._free = list(range(max_num_seqs - 1, -1, -1))
        self.token_ids = np.zeros((max_num_seqs, max_model_len), np.int32)  # known tokens: prompt, then output
        self.num_tokens = np.zeros(max_num_seqs, np.int32)  # known
        self.num_prompt_tokens = np.zeros(max_num_seqs, np.int32)
        self.num_computed_tokens = np.zeros(max_num_seqs, np.int32)
        self.block_table = BlockTable(max_num_seqs, max_model_len, block_size)
        self.temperature = np.zeros(max_num_seqs, np.float64)
        self.top_k = np.zeros(max_num_seqs, np.int32)  # 0: off
        self.top_p = np.ones(max_num_seqs, np.float64)
        self.min_p = np.zeros(max_num_seqs, np.float64)
        self.seed = np.zeros(max_num_seqs, np.int64)
        self.min_tokens = np.zeros(max_num_seqs, np.int32)  # of output, before which no stop id may come
        self.stop_ids: dict[int, NDArray[np.int32]] = {}  # row -> its stop ids, where min_tokens is not 0

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
        params = request.sampling_params
        self.temperature[row] = params.temperature
        self.top_k[row] = max(params.top_k, 0)
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.seed[row] = params.seed or 0
        self.min_tokens[row] = params.min_tokens
        if params.min_tokens:
            eos = () if params.ignore_eos else self._eos_token_ids
            self.stop_ids[row] = np.array(sorted({*eos, *params.stop_token_ids}), np.int32)

    def remove(self, req_id: str) -> None:
        """Free the request's row. One that has none (aborted before it ran) is not a fault."""
        row = self.rows.pop(req_id, None)
        if row is not None:
            self._free.append(row)
            self.stop_ids.pop(row, None)

    def append_tokens(self, rows: NDArray[np.intp], token_ids: NDArray[np.int32]) -> None:
        """One sampled token for each of `rows`; it is the row's next input. At the context's end it is not kept."""
        places = self.num_tokens[rows]
        fits = places < self.token_ids.shape[1]
        self.token_ids[rows[fits], places[fits]] = token_ids[fits]
        self.num_tokens[rows] += 1
