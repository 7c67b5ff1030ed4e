"""A worker without a model: its next token is a hash of all the context that it can see through its block table.

A slot of its KV cache holds what a real one does in spirit: a value made of the token and of the value before it, as
seen through the block table when it was written. The next token is a hash of the values in all slots up to the last.
So a wrong block, a lost or doubled token, a stale hit, a block that somebody else has overwritten: each changes the
answer, and the tokens of a request computed alone are an oracle for the same request under any schedule.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from headrace.contracts.codec import Codec
from headrace.contracts.model_runner import ModelRunnerOutput, TokenLogprobs
from headrace.contracts.sampling_params import SamplingParams
from headrace.contracts.scheduler import NewRequestData, SchedulerOutput
from headrace.core.executor.uniproc import Done
from headrace.errors import InvariantError

VOCAB_SIZE = 1000

_MASK = 2**64 - 1


def root_value(cache_salt: str | None) -> int:
    """The value before the first. It depends on the salt, so a hit across salts shows in the tokens."""
    return 1 if cache_salt is None else int.from_bytes(blake2b(cache_salt.encode(), digest_size=7).digest(), "little")


def slot_value(before: int, token_id: int) -> int:
    """What a slot holds: its token and all the context before it. A linear congruence, as this is the hot path."""
    return (before * 6364136223846793005 + token_id * 0x9E3779B97F4A7C15 + 1442695040888963407) & _MASK


def context_values(token_ids: Iterable[int], root: int) -> list[int]:
    """What the slots of a context hold where nothing has gone wrong."""
    values, value = [], root
    for token_id in token_ids:
        value = slot_value(value, token_id)
        values.append(value)
    return values


def next_token(values: Sequence[int], *, seed: int, vocab_size: int, banned: Collection[int] = ()) -> int:
    """The token after a context. `banned`: ids that must not come yet."""
    data = array("Q", values).tobytes() + seed.to_bytes(8, "little", signed=True)
    token_id = int.from_bytes(blake2b(data, digest_size=8).digest(), "little") % vocab_size
    while token_id in banned:
        token_id = (token_id + 1) % vocab_size
    return token_id


def hash_tokens(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The first tokens of the answer, computed alone, for a request without salt and with seed 0."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(context_values(tokens, root_value(None)), seed=0, vocab_size=VOCAB_SIZE))
    return tokens[len(prompt) :]


def prompt_logprob(value: int, token_id: int) -> TokenLogprobs:
    """Of a token of a prompt after the context with this value. No top tokens: the book-keeping is what is tested."""
    return TokenLogprobs(-float(value % 4096), token_id + 1)


@dataclass
class Row:
    """A request, as the worker knows it."""

    tokens: list[int]
    block_ids: list[int]
    num_computed: int
    num_prompt_tokens: int
    params: SamplingParams
    root: int
    stop_ids: frozenset[int] = field(default_factory=frozenset)  # not before min_tokens
    wants_prompt_logprobs: bool = False


class HashExecutor:
    """Keeps to the worker's contract to the letter, and raises where the scheduler does not.

    Steps and their results pass through MessagePack, as they would to a worker in another process."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        vocab_size: int = VOCAB_SIZE,
        eos_token_ids: Collection[int] = (),
        salt_of: Callable[[str], str | None] = lambda req_id: None,
        max_prompt_logprobs: int = 64,
    ) -> None:
        """`salt_of` tells a request's salt, which no real worker knows."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.slots: list[int | None] = [None] * (num_blocks * block_size)  # tokens
        self.rows: dict[str, Row] = {}
        self.steps: list[SchedulerOutput] = []
        self._values = [0] * (num_blocks * block_size)
        self._max_prompt_logprobs = max_prompt_logprobs
        self._prompt_logprobs: dict[str, list[TokenLogprobs]] = {}  # of the last step
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._salt_of = salt_of
        self._step_codec: Codec[SchedulerOutput] = Codec(SchedulerOutput)
        self._result_codec: Codec[ModelRunnerOutput] = Codec(ModelRunnerOutput)

    def load_model(self) -> None:
        pass

    def initialize_kv_cache(self) -> int:
        return self.num_blocks

    def memory_plan(self) -> str:
        return ""

    def shutdown(self) -> None:
        pass

    def forget(self) -> None:
        """Nothing that is in the cache may be used from now on, as when the weights change."""
        self._values = [0] * len(self._values)

    def execute_model(self, step: SchedulerOutput) -> Done[None]:
        step = self._step_codec.decode(self._step_codec.encode(step))
        self.steps.append(step)
        for req_id in (*step.preempted_req_ids, *step.finished_req_ids):
            self._row(req_id)
            del self.rows[req_id]
        for new in step.scheduled_new_reqs:
            self._add(new)
        for req_id, (block_ids,) in zip(
            step.scheduled_cached_reqs.req_ids, step.scheduled_cached_reqs.new_block_ids, strict=True
        ):
            self._row(req_id).block_ids += block_ids
        if step.total_num_scheduled_tokens != sum(step.num_scheduled_tokens.values()):
            raise InvariantError("the tokens of a step are not those of its requests")
        self._prompt_logprobs = {}
        for req_id, num_tokens in step.num_scheduled_tokens.items():
            found = self._compute(self._row(req_id), num_tokens)
            if found:
                self._prompt_logprobs[req_id] = found
        if sum(map(len, self._prompt_logprobs.values())) > self._max_prompt_logprobs:
            raise InvariantError("a step has more logprobs of prompts than it may")
        return Done(None)

    def sample_tokens(self) -> Done[ModelRunnerOutput]:
        output = ModelRunnerOutput([], [], prompt_logprobs=self._prompt_logprobs or None)
        for req_id in self.steps[-1].num_scheduled_tokens:
            row = self.rows[req_id]
            if row.num_computed < len(row.tokens):
                continue  # in the middle of its prompt
            too_early = len(row.tokens) - row.num_prompt_tokens < row.params.min_tokens
            token_id = next_token(
                self._visible(row),
                seed=row.params.seed or 0,
                vocab_size=self._vocab_size,
                banned=row.stop_ids if too_early else (),
            )
            row.tokens.append(token_id)
            output.req_ids.append(req_id)
            output.sampled_token_ids.append(token_id)
        return Done(self._result_codec.decode(self._result_codec.encode(output)))

    def _row(self, req_id: str) -> Row:
        row = self.rows.get(req_id)
        if row is None:
            raise InvariantError(f"the worker has no row for request {req_id}")
        return row

    def _add(self, new: NewRequestData) -> None:
        if new.req_id in self.rows:
            raise InvariantError(f"the worker has a row for request {new.req_id} already")
        params = new.sampling_params
        self.rows[new.req_id] = Row(
            tokens=new.prompt_token_ids + new.output_token_ids,
            block_ids=list(new.block_ids[0]),
            num_computed=new.num_computed_tokens,
            num_prompt_tokens=len(new.prompt_token_ids),
            params=params,
            root=root_value(self._salt_of(new.req_id)),
            stop_ids=(frozenset() if params.ignore_eos else self._eos_token_ids).union(params.stop_token_ids),
            wants_prompt_logprobs=params.prompt_logprobs is not None and not new.output_token_ids,
        )

    def _compute(self, row: Row, num_tokens: int) -> list[TokenLogprobs]:
        """Write the slots of the next tokens of a row.

        Returns the logprobs of the prompt's tokens that follow these, if the row wants them."""
        start, end = row.num_computed, row.num_computed + num_tokens
        if not start < end <= len(row.tokens):
            raise InvariantError(f"{num_tokens} tokens are to be computed, of {len(row.tokens) - start} that there are")
        if end > len(row.block_ids) * self.block_size:
            raise InvariantError(f"{end} positions do not fit {len(row.block_ids)} blocks of {self.block_size}")
        found: list[TokenLogprobs] = []
        value = row.root if start == 0 else self._values[self._slot(row, start - 1)]
        for position in range(start, end):
            slot = self._slot(row, position)
            value = slot_value(value, row.tokens[position])
            self.slots[slot] = row.tokens[position]
            self._values[slot] = value
            if row.wants_prompt_logprobs and position + 1 < row.num_prompt_tokens:
                found.append(prompt_logprob(value, row.tokens[position + 1]))
        row.num_computed = end
        return found

    def _visible(self, row: Row) -> list[int]:
        """What the row sees of its context through its block table."""
        values: list[int] = []
        for block_id in row.block_ids:
            values += self._values[block_id * self.block_size : (block_id + 1) * self.block_size]
        return values[: row.num_computed]

    def _slot(self, row: Row, position: int) -> int:
        return row.block_ids[position // self.block_size] * self.block_size + position % self.block_size
