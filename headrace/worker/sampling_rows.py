"""How the request in each row of the `InputBatch` wants its tokens chosen.

What every request has is a column. What few have is kept by row in a dict that is otherwise empty, so that a step of
plain requests does not look at it, and becomes flat lists (`model.ops.TokenLists`) when some row of a step has it.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.contracts.sampling_params import SamplingParams
from headrace.contracts.scheduler import NewRequestData
from headrace.model.ops import LogitBias, LogprobsWanted, Penalties, SamplingInputs, TokenLists
from headrace.model.sampling.random import uniform

Int32 = NDArray[np.int32]
Rows = NDArray[np.intp]
Scalar = TypeVar("Scalar", bound=np.generic)

_NOTHING = np.zeros(0, np.int32)


class SamplingRows:
    def __init__(self, max_num_seqs: int, eos_token_ids: Sequence[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._temperature = np.zeros(max_num_seqs, np.float64)
        self._top_k = np.zeros(max_num_seqs, np.int32)  # 0: off
        self._top_p = np.ones(max_num_seqs, np.float64)
        self._min_p = np.zeros(max_num_seqs, np.float64)
        self._seed = np.zeros(max_num_seqs, np.int64)
        self._min_tokens = np.zeros(max_num_seqs, np.int64)  # of output, before which no stop id may come
        self._repetition = np.ones(max_num_seqs, np.float32)
        self._presence = np.zeros(max_num_seqs, np.float32)
        self._frequency = np.zeros(max_num_seqs, np.float32)
        # By row, where a request has any:
        self._stop_ids: dict[int, Int32] = {}  # where min_tokens is not 0
        self._allowed: dict[int, Int32] = {}
        self._bias: dict[int, tuple[Int32, NDArray[np.float32]]] = {}
        self._seen: dict[int, SeenTokens] = {}  # where there is a penalty
        self._num_top: dict[int, int] = {}  # where logprobs are wanted
        self._bad_words: dict[int, BadWords] = {}
        self.prompt_logprobs: dict[int, int] = {}  # as `_num_top`, of the prompt's tokens

    def add(self, row: int, request: NewRequestData) -> None:
        """A request gets the row. One that returns after a preemption brings the output that the penalties look at."""
        params = request.sampling_params
        self._temperature[row] = params.temperature
        self._top_k[row] = max(params.top_k, 0)
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seed[row] = params.seed or 0
        self._min_tokens[row] = params.min_tokens
        if params.min_tokens:
            eos = () if params.ignore_eos else self._eos_token_ids
            self._stop_ids[row] = _distinct((*eos, *params.stop_token_ids))
        if params.allowed_token_ids is not None:
            self._allowed[row] = _distinct(params.allowed_token_ids)
        if params.logit_bias:
            self._bias[row] = _ids(params.logit_bias), np.array(list(params.logit_bias.values()), np.float32)
        if params.logprobs is not None:
            self._num_top[row] = params.logprobs
        if params.prompt_logprobs is not None and not request.output_token_ids:
            self.prompt_logprobs[row] = params.prompt_logprobs
        if params.bad_token_ids:
            self._bad_words[row] = BadWords(params.bad_token_ids, request.output_token_ids)
        self._repetition[row] = params.repetition_penalty
        self._presence[row] = params.presence_penalty
        self._frequency[row] = params.frequency_penalty
        if has_penalties(params):
            prompt = request.prompt_token_ids if params.repetition_penalty != 1 else ()
            self._seen[row] = SeenTokens(prompt, request.output_token_ids)

    def remove(self, row: int) -> None:
        for by_row in (
            self._stop_ids, self._allowed, self._bias, self._seen, self._num_top, self._bad_words, self.prompt_logprobs,
        ):  # fmt: skip
            by_row.pop(row, None)

    def note_tokens(self, rows: Rows, token_ids: Int32) -> None:
        """One sampled token for each of `rows`."""
        if not self._seen and not self._bad_words:
            return
        for row, token_id in zip(rows.tolist(), token_ids.tolist(), strict=True):
            if row in self._seen:
                self._seen[row].note(token_id)
            if row in self._bad_words:
                self._bad_words[row].note(token_id)

    def gather(self, rows: Rows, positions: NDArray[np.int64]) -> SamplingInputs:
        """For the rows that sample; `positions` are the places of their tokens in the output."""
        temperature = self._temperature[rows]
        return SamplingInputs(
            temperature=temperature,
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
            # A tenth of a millisecond, whatever the number of rows: not for steps that are all greedy.
            uniform=uniform(self._seed[rows], positions) if temperature.any() else np.zeros(len(rows), np.float64),
            allowed=_token_lists(self._allowed.get(row, _NOTHING) for row in rows.tolist()) if self._allowed else None,
            banned=self._gather_banned(rows, positions) if self._stop_ids or self._bad_words else None,
            bias=self._gather_bias(rows) if self._bias else None,
            penalties=self._gather_penalties(rows) if self._seen else None,
            logprobs=self._gather_logprobs(rows) if self._num_top else None,
        )

    def _gather_banned(self, rows: Rows, positions: NDArray[np.int64]) -> TokenLists | None:
        early = positions < self._min_tokens[rows]
        if not early.any() and not self._bad_words:
            return None
        banned = []
        for row, is_early in zip(rows.tolist(), early.tolist(), strict=True):
            ids = self._stop_ids[row] if is_early else _NOTHING
            if row in self._bad_words:
                ids = np.union1d(ids, _ids(self._bad_words[row].next_ids())).astype(np.int32, copy=False)
            if row in self._allowed and np.isin(self._allowed[row], ids).all():
                ids = _NOTHING  # some token must come, and what is allowed was said on purpose
            banned.append(ids)
        return _token_lists(banned)

    def _gather_bias(self, rows: Rows) -> LogitBias:
        nothing = _NOTHING, np.zeros(0, np.float32)
        found = [self._bias.get(row, nothing) for row in rows.tolist()]
        return LogitBias(_token_lists(ids for ids, _ in found), _flat([values for _, values in found], np.float32))

    def _gather_penalties(self, rows: Rows) -> Penalties:
        found = [self._seen.get(row, _NEVER_SEEN) for row in rows.tolist()]
        return Penalties(
            self._repetition[rows],
            self._presence[rows],
            self._frequency[rows],
            seen=_token_lists(np.array(seen.ids, np.int32) for seen in found),
            output_counts=_flat([np.array(seen.output_counts, np.int32) for seen in found], np.int32),
        )

    def _gather_logprobs(self, rows: Rows) -> LogprobsWanted | None:
        wanted = [(place, self._num_top[row]) for place, row in enumerate(rows.tolist()) if row in self._num_top]
        if not wanted:
            return None
        places, num_top = np.array(wanted, np.int32).T
        return LogprobsWanted(np.ascontiguousarray(places), np.ascontiguousarray(num_top))


class SeenTokens:
    """The different tokens of a request, as they first came, and how often each is in the output."""

    def __init__(self, prompt: Iterable[int], output: Iterable[int]) -> None:
        self.ids = array("i", dict.fromkeys(prompt))
        self.output_counts = array("i", bytes(4 * len(self.ids)))
        self._places = {token_id: place for place, token_id in enumerate(self.ids)}
        for token_id in output:
            self.note(token_id)

    def note(self, token_id: int) -> None:
        place = self._places.setdefault(token_id, len(self.ids))
        if place == len(self.ids):
            self.ids.append(token_id)
            self.output_counts.append(0)
        self.output_counts[place] += 1


class BadWords:
    """Token sequences that a request's output must not have, and the end of its output, where one may have begun."""

    def __init__(self, words: Sequence[Sequence[int]], output: Sequence[int]) -> None:
        self._words = [(list(word[:-1]), word[-1]) for word in words]
        longest = max(len(beginning) for beginning, _ in self._words)
        self._tail: deque[int] = deque(output, maxlen=longest)

    def note(self, token_id: int) -> None:
        self._tail.append(token_id)

    def next_ids(self) -> Iterator[int]:
        """The tokens that would complete one now."""
        tail = list(self._tail)
        for beginning, last in self._words:
            if not beginning or tail[-len(beginning) :] == beginning:
                yield last


_NEVER_SEEN = SeenTokens((), ())


def has_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


def _ids(token_ids: Iterable[int]) -> Int32:
    return np.fromiter(token_ids, np.int32)


def _distinct(token_ids: Iterable[int]) -> Int32:
    return np.unique(_ids(token_ids))


def _token_lists(lists: Iterable[Int32]) -> TokenLists:
    found = list(lists)
    starts = np.zeros(len(found) + 1, np.int32)
    np.cumsum([len(ids) for ids in found], out=starts[1:])
    return TokenLists(starts, _flat(found, np.int32))


def _flat(arrays: Sequence[NDArray[Scalar]], dtype: type[Scalar]) -> NDArray[Scalar]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)
