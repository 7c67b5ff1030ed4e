"""A request's tokens and logprobs are those of the request alone, bit for bit, whatever the engine does around it.

One baseline: requests one after another, a budget of 512 tokens. Each thing that could matter is changed alone, and
then many at once in combinations drawn from a seed. `test_bitwise.py` runs this over small models of random weights;

    make bitwise        (or: python -m tests.conformance.bitwise --dtype float32 --requests 50)

runs it over the demo model.
"""

from __future__ import annotations

import argparse
import random
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headrace.contracts.engine import EngineCoreOutput
from headrace.contracts.sampling_params import SamplingParams
from tests.conformance.engine_runs import make_client, outputs_of

MAX_PROMPT, MAX_OUTPUT = 600, 16
MAX_MODEL_LEN = MAX_PROMPT + MAX_OUTPUT
ROOMY = 48 * MAX_MODEL_LEN  # tokens in a KV cache that nothing is preempted in
TIGHT = MAX_MODEL_LEN + 100  # and in one where things are


# ---- requests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    prompt: list[int]
    params: SamplingParams


def make_requests(count: int, vocab_size: int, seed: int = 0) -> dict[str, Asked]:
    """Prompts of 1 to 600 tokens, short ones more often; every fourth begins as an earlier one does."""
    rng = random.Random(seed)
    made: list[Asked] = []
    for _ in range(count):
        length = rng.randint(1, rng.choice((20, 80, 300, MAX_PROMPT)))
        stem = rng.choice(made).prompt[: length - 1] if len(made) % 4 == 3 else []
        prompt = stem + [rng.randrange(vocab_size) for _ in range(length - len(stem))]
        made.append(Asked(prompt, make_params(rng, vocab_size)))
    made[-1].prompt[:] = [rng.randrange(vocab_size) for _ in range(MAX_PROMPT)]
    return {f"r{i}": asked for i, asked in enumerate(made)}


def make_params(rng: random.Random, vocab_size: int) -> SamplingParams:
    """A third is greedy. Every wish is there, alone and beside others."""
    wishes: dict[str, object] = {"temperature": rng.choice((0.0, 0.7, 1.3))}
    menu: list[dict[str, object]] = [
        {"top_p": rng.uniform(0.3, 0.95)},
        {"top_k": rng.randint(1, 50)},
        {"min_p": rng.uniform(0.01, 0.3)},
        {"repetition_penalty": rng.uniform(0.8, 1.5)},
        {"presence_penalty": rng.uniform(-1, 1)},
        {"frequency_penalty": rng.uniform(-1, 1)},
        {"logit_bias": {rng.randrange(vocab_size): rng.uniform(-5, 5) for _ in range(3)}},
        {"allowed_token_ids": tuple(rng.sample(range(vocab_size), vocab_size // 2))},
        {"min_tokens": 3, "stop_token_ids": tuple(rng.sample(range(vocab_size), 5))},
    ]
    for wish in rng.sample(menu, rng.randint(0, 3)):
        wishes |= wish
    return SamplingParams(
        seed=rng.getrandbits(63),
        max_tokens=rng.randint(4, MAX_OUTPUT),
        logprobs=rng.choice((None, 0, 1, 2, 3, 4, 5)),
        **wishes,
    )


# ---- a run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variation:
    """How the engine is set up, and what must have happened for the run to mean anything."""

    name: str
    settings: Mapping[str, object] = field(default_factory=dict)
    is_tight: bool = False  # a KV cache so small that requests are preempted
    order_seed: int | None = None  # the order that requests come in; None: as they are
    num_runs: int = 1  # on the same engine; the last one counts

    @property
    def is_caching(self) -> bool:
        return bool(self.settings.get("enable_prefix_caching", True))


@dataclass(frozen=True)
class Run:
    """What came out, request by request: a list of (token, bits of its logprobs)."""

    answers: dict[str, list[tuple[int, bytes]]]
    num_preemptions: int
    num_cached_tokens: int


def run(model: Mapping[str, object], asked: Mapping[str, Asked], variation: Variation) -> Run:
    settings = {"max_num_seqs": 1, "max_num_batched_tokens": 512, "block_size": 16, "max_model_len": MAX_MODEL_LEN}
    settings |= {"backend": "native", **model, **variation.settings}
    num_tokens = TIGHT if variation.is_tight else ROOMY
    client = make_client(**settings, num_kv_blocks_override=-(-num_tokens // settings["block_size"]))
    names = list(asked)
    if variation.order_seed is not None:
        random.Random(variation.order_seed).shuffle(names)
    prompts, params = {r: asked[r].prompt for r in names}, {r: asked[r].params for r in names}
    for _ in range(variation.num_runs):
        answers: dict[str, list[tuple[int, bytes]]] = {r: [] for r in asked}
        for output in outputs_of(client, prompts, params):
            assert output.first_index == len(answers[output.request_id])
            answers[output.request_id] += tokens_with_bits(output, params[output.request_id].logprobs)
    stats = client.engine_core.scheduler.stats()
    client.shutdown()
    return Run(answers, stats.num_preemptions, stats.prefix_cache_hits)


def tokens_with_bits(output: EngineCoreOutput, wanted: int | None) -> Iterator[tuple[int, bytes]]:
    if wanted is None:
        assert output.new_logprobs is None
        yield from ((token, b"") for token in output.new_token_ids)
        return
    for token, of in zip(output.new_token_ids, output.new_logprobs, strict=True):
        assert len(of.top_ids) == len(of.top_logprobs) == 4 * wanted
        yield token, struct.pack("<di", of.logprob, of.rank) + of.top_ids + of.top_logprobs


# ---- variations ------------------------------------------------------------------------------------------------------

BASELINE = Variation("alone, budget 512")

ALONE = [
    Variation("a repeat"),
    Variation("every prompt cached", num_runs=2),
    # Logits are computed for 64 rows at a time: a hundred are more than one piece of them.
    *(Variation(f"batches of {n}", {"max_num_seqs": n}) for n in (2, 8, 64, 100)),
    *(Variation(f"budget {n}", {"max_num_batched_tokens": n}) for n in (16, 64, 2048)),
    Variation("cache off", {"enable_prefix_caching": False}),
    Variation("preempted", {"max_num_seqs": 8}, is_tight=True),
    Variation("1 thread", {"num_threads": 1}),
    Variation("3 threads", {"num_threads": 3}),
    Variation("blocks of 7", {"block_size": 7}),
    Variation("another order", order_seed=1),
]


def combinations(count: int, seed: int) -> list[Variation]:
    """Everything at once, at random."""
    rng = random.Random(seed)
    return [combination(rng, f"combination {i} of seed {seed}") for i in range(count)]


def combination(rng: random.Random, name: str) -> Variation:
    max_num_seqs = rng.choice((2, 3, 8, 16, 33, 64, 100))
    budgets = [n for n in (16, 37, 64, 100, 512, 2048) if n >= max_num_seqs]
    return Variation(
        name,
        {
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": rng.choice(budgets),
            "enable_prefix_caching": rng.random() < 0.7,
            "num_threads": rng.choice((1, 2, 3)),
            "block_size": rng.choice((5, 16, 32)),
        },
        is_tight=rng.random() < 0.4,
        order_seed=rng.getrandbits(32),
    )


# ---- the comparison --------------------------------------------------------------------------------------------------


def differences(found: Run, baseline: Run) -> list[str]:
    """A line for each request that is not what it is in the baseline: where, and what."""
    lines = []
    for request_id, expected in baseline.answers.items():
        answer = found.answers[request_id]
        if answer != expected:
            pairs = zip(answer, expected, strict=False)
            place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(answer), len(expected)))
            lines.append(
                f"{request_id}, output {place}: {answer[place : place + 1]}, not {expected[place : place + 1]}"
            )
    return lines


def assert_same_bits(found: Run, baseline: Run, variation: Variation) -> None:
    """And the prefix cache did what the variation says: a run without hits would prove nothing about them."""
    lines = differences(found, baseline)
    assert not lines, f"{variation} differs in {len(lines)} of {len(found.answers)} requests:\n" + "\n".join(lines[:5])
    if not variation.is_caching:
        assert found.num_cached_tokens == 0
    elif not variation.is_tight:
        assert found.num_cached_tokens > 0


# ---- over the demo model ---------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.bitwise")
    parser.add_argument("--model", default="", help="default: the demo model")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--kv-cache-dtype", default="auto", choices=("auto", "bfloat16", "int8", "fp8"))
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--combinations", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the combinations")
    options = parser.parse_args()
    model = {"model": options.model, "dtype": options.dtype, "kv_cache_dtype": options.kv_cache_dtype}
    asked = make_requests(options.requests, vocab_size=49152)
    started = time.monotonic()
    baseline = run(model, asked, BASELINE)
    num_tokens = sum(map(len, baseline.answers.values()))
    print(f"{len(asked)} requests, {sum(len(a.prompt) for a in asked.values())} + {num_tokens} tokens", flush=True)
    for variation in [*ALONE, *combinations(options.combinations, options.seed)]:
        found = run(model, asked, variation)
        assert_same_bits(found, baseline, variation)
        counts = f"{found.num_cached_tokens} cached, {found.num_preemptions} preemptions"
        print(f"{time.monotonic() - started:7.1f} s  the same: {variation.name} ({counts})", flush=True)


if __name__ == "__main__":
    main()
