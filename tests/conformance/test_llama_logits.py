"""The llama program against transformers' on the same random weights: logits within 1e-4 of the largest |logit|."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headrace.config.model_files import read_model_facts
from headrace.model.loader.checkpoint import open_checkpoint
from headrace.model.loader.loader import load_program
from headrace.model.ops import Backend
from tests.conformance.batches import step_inputs

MAX_LENGTH = 160
BLOCK_SIZE = 16
CASES = [
    # head_dim, heads, KV heads, tied, stored as, largest file
    (32, 4, 2, True, torch.float32, "10GB"),
    (64, 9, 3, False, torch.float32, "200KB"),
    (80, 2, 2, True, torch.bfloat16, "10GB"),
    (128, 3, 1, False, torch.float16, "10GB"),
]


@pytest.mark.parametrize(("head_dim", "heads", "kv_heads", "tied", "dtype", "shard_size"), CASES)
def test_logits_of_prefill_and_decode(
    backend: Backend,
    tmp_path: Path,
    head_dim: int,
    heads: int,
    kv_heads: int,
    tied: bool,
    dtype: torch.dtype,
    shard_size: str,
) -> None:
    torch.manual_seed(head_dim)
    config = LlamaConfig(
        vocab_size=331,
        hidden_size=144,
        intermediate_size=176,
        num_hidden_layers=3,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        initializer_range=0.2,  # so large that attention has something to choose from
    )
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.to(dtype).save_pretrained(tmp_path, max_shard_size=shard_size)
    reference = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()

    facts = read_model_facts(tmp_path)
    program = load_program(
        facts, open_checkpoint(facts, "auto", 0), backend.memory, num_positions=MAX_LENGTH, num_threads=2
    )
    num_blocks = MAX_LENGTH // BLOCK_SIZE
    backend.memory.allocate_kv_cache(program.attention_layers, 2 * num_blocks, BLOCK_SIZE)
    tables = np.random.default_rng(0).permutation(2 * num_blocks).astype(np.int32).reshape(2, num_blocks)
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, (2, MAX_LENGTH)).astype(np.int32)

    # The first request in chunks and then token by token, the second beside it in two pieces.
    logits = np.full((2, MAX_LENGTH, config.vocab_size), np.nan, np.float32)
    steps = [(range(50), range(70)), (range(50, 130), range(70, MAX_LENGTH))]
    steps += [(range(position, position + 1), range(0)) for position in range(130, MAX_LENGTH)]
    for positions in steps:
        active = [request for request in range(2) if len(positions[request])]
        ranges = [positions[request] for request in active]
        inputs = step_inputs(ranges, tables[active], BLOCK_SIZE, range(sum(map(len, ranges))))
        inputs.token_ids[:] = np.concatenate(
            [tokens[i, rows.start : rows.stop] for i, rows in zip(active, ranges, strict=True)]
        )
        rows = np.repeat(active, [len(piece) for piece in ranges])
        logits[rows, inputs.positions] = program.forward(backend.ops, backend.begin_step(inputs))

    with torch.no_grad():
        expected = reference(torch.from_numpy(tokens).long()).logits.numpy()
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()
