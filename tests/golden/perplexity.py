"""How much the bfloat16 engine's arithmetic costs: perplexity of a text, beside the same weights computed in float32.

    make accuracy        (all 20,000 tokens; test_native_demo_model.py has the first 2,000)

The text is data/python_reference.txt, in windows of 1,000 tokens that know nothing of each other. The engine has no
logprobs of prompts yet, so this asks the worker's own graph for the logits of every row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from headrace.backends.numpy.dequantize import dequantize_into
from headrace.config.engine_config import EngineConfig
from headrace.config.model_files import locate_model
from headrace.config.resolve import resolve
from headrace.frontend.tokenizer.load import load_tokenizer
from headrace.model.loader.checkpoint import Checkpoint, open_checkpoint
from headrace.model.loader.loader import load_program
from headrace.model.ops import Graph, Precision, StepInputs, StoredTensor
from headrace.worker.backends import make_backend
from headrace.worker.graphs import capture_forward

TEXT = Path(__file__).with_name("data") / "python_reference.txt"
NUM_TOKENS = 20_000
WINDOW = 1000
STEP = 250  # rows at a time
BLOCK_SIZE = 16
NUM_BLOCKS = -(-WINDOW // BLOCK_SIZE)


def text_tokens(count: int) -> list[int]:
    tokens = load_tokenizer(locate_model("")).encode(TEXT.read_text(encoding="utf-8"), add_special_tokens=False)
    assert len(tokens) >= NUM_TOKENS
    return tokens[:count]


class RoundedCheckpoint:
    """A checkpoint whose matrices have been rounded to bfloat16: the weights that the bfloat16 engine has."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.names, self.release = checkpoint.names, checkpoint.release

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        stored = self._checkpoint.tensor(name, shape)
        if len(shape) == 1:
            return stored
        values = np.empty(shape, np.float32)
        dequantize_into(values, stored)
        rounded = values.astype(ml_dtypes.bfloat16).view(np.uint16)
        return StoredTensor(name, "BF16", shape, rounded.data.cast("B"))


def negative_log_likelihoods(precision: Precision, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Of each token but the first of its window. Weights have the values of bfloat16 in any case, but for those
    that are kept in few bits."""
    config = resolve(
        EngineConfig(
            backend="native",
            dtype=precision.dtype,
            max_model_len=WINDOW,
            max_num_seqs=STEP,  # the samples that a step has room for
            max_num_batched_tokens=STEP,
            block_size=BLOCK_SIZE,
            num_kv_blocks_override=NUM_BLOCKS,
        )
    )
    checkpoint = open_checkpoint(config.model.facts, "auto", 0)
    num_threads = config.worker.num_threads
    backend = make_backend("native", num_threads, precision)
    program = load_program(
        config.model.facts,
        RoundedCheckpoint(checkpoint) if precision.dtype == "float32" else checkpoint,
        backend.memory,
        num_positions=WINDOW,
        num_threads=num_threads,
    )
    backend.memory.allocate_kv_cache(program.attention_layers, NUM_BLOCKS, BLOCK_SIZE)
    graph = capture_forward(config, backend, program)
    with backend.running():
        found = [losses for i in range(0, len(tokens), WINDOW) for losses in of_window(graph, tokens[i : i + WINDOW])]
    backend.close()
    return np.concatenate(found)


def of_window(graph: Graph, tokens: Sequence[int]) -> Iterator[NDArray[np.float64]]:
    """A request of its own, in chunks."""
    for start in range(0, len(tokens), STEP):
        positions = np.arange(start, min(start + STEP, len(tokens)), dtype=np.int32)
        predicted = np.array(tokens[start + 1 : start + STEP + 1])  # one row less at the end of the window
        inputs = StepInputs(
            token_ids=np.array(tokens, np.int32)[positions],
            positions=positions,
            slots=positions,
            query_starts=np.array([0, len(positions)], np.int32),
            context_lens=np.array([positions[-1] + 1], np.int32),
            block_tables=np.arange(NUM_BLOCKS, dtype=np.int32)[None],
            sample_rows=np.arange(len(predicted), dtype=np.int32),
        )
        logits = np.asarray(graph.replay(inputs))
        chosen = logits[np.arange(len(predicted)), predicted].astype(np.float64)
        highest = logits.max(axis=1)
        sums = np.exp(logits - highest[:, None]).sum(axis=1, dtype=np.float64)
        yield highest + np.log(sums) - chosen


def perplexity(losses: NDArray[np.float64]) -> float:
    return math.exp(losses.mean())


def main() -> None:
    tokens = text_tokens(NUM_TOKENS)
    found = {}
    for dtype in ("float32", "bfloat16"):
        started = time.monotonic()
        found[dtype] = perplexity(negative_log_likelihoods(Precision(dtype), tokens))
        print(f"{dtype}: perplexity {found[dtype]:.4f} ({time.monotonic() - started:.0f} s)", flush=True)
    ratio = found["bfloat16"] / found["float32"]
    print(f"bfloat16 / float32 = {ratio:.5f}")
    assert abs(ratio - 1) <= 0.005
    in_few_bits = [
        Precision("bfloat16", *words) for words in product(("stored", "int8", "int4"), ("none", "int8", "int16"))
    ]
    for precision in (*in_few_bits, *(Precision("bfloat16", kv_cache_dtype=word) for word in ("int8", "fp8"))):
        few = perplexity(negative_log_likelihoods(precision, tokens))
        print(f"{precision}: perplexity {few:.4f}, to bfloat16 {few / found['bfloat16']:.5f}", flush=True)


if __name__ == "__main__":
    main()
