"""`Scenario`: everything that a run of the simulation does, as plain data. What is not said is as simple as can be, so
what prints of a scenario is what matters in it, and it can be pasted into a test.

Times are in ticks from the beginning; lengths in tokens.
"""

from __future__ import annotations

import msgspec

VOCAB_SIZE = 64


class RequestSpec(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A user with one request. The prompt is `shared` tokens of family `family`, then `own` tokens of its own, then the
    first `continues` tokens of the answer to these: the next turn of a conversation."""

    name: int  # decides its own tokens; no two are equal
    arrives: int = 0
    client_index: int = 0
    family: int = 0
    shared: int = 0
    own: int = 1
    continues: int = 0
    max_tokens: int | None = 1
    min_tokens: int = 0
    n: int = 1
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    output_kind: str = "CUMULATIVE"  # a name of `OutputKind`
    priority: int = 0
    cache_salt: str | None = None
    prompt_logprobs: bool = False
    leaves_after: int | None = None  # ticks after its arrival, unless it has its answer by then
    reads_every: int = 0  # ticks between two visits to the collector
    bad_token: bool = False  # the prompt has an id that is not in the vocabulary

    @property
    def num_prompt_tokens(self) -> int:
        return self.shared + self.own + self.continues + self.bad_token


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Requests without end: always `keep` of them unfinished, until every request of the scenario has ended."""

    name: int
    keep: int = 1
    every: int = 1  # ticks between two of them, at least
    own: int = 1
    shared: int = 0
    max_tokens: int = 1
    priority: int = 0
    prompt_logprobs: bool = False
    varies: bool = False  # lengths between 1 and those above


class Scenario(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    seed: int = 0  # of delays and duplicates
    requests: tuple[RequestSpec, ...] = ()
    streams: tuple[StreamSpec, ...] = ()
    # the engine
    num_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 8
    budget: int = 32
    max_model_len: int = 64
    caching: bool = True
    verify_hits: bool = False
    policy: str = "fcfs"
    patience: int = 512
    max_passes: int = 8
    max_prompt_logprobs: int = 64
    prefill_tokens_per_request: int = 4
    min_prefill_limit: int = 64
    eos_token_ids: tuple[int, ...] = ()
    # the world
    num_clients: int = 1
    max_delay: int = 0  # of a message
    max_step: int = 1  # of an engine step
    duplicate_percent: int = 0
    deaths: tuple[int, ...] = ()  # when the engine core is lost
    resets: tuple[int, ...] = ()  # when some front end asks for a reset of the prefix cache
    cancels: tuple[int, ...] = ()  # when some front end ends all that it has


def literal(scenario: Scenario) -> str:
    """Python source of the scenario: one line for the settings, one for each request, stream."""
    lines = ["Scenario("]
    for name in scenario.__struct_fields__:
        value = getattr(scenario, name)
        if value == getattr(_DEFAULT, name):
            continue
        if name in ("requests", "streams"):
            lines += [f"    {name}=(", *(f"        {item!r}," for item in value), "    ),"]
        else:
            lines.append(f"    {name}={value!r},")
    return "\n".join([*lines, ")"])


_DEFAULT = Scenario()
