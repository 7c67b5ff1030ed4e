"""The llama program against transformers' on the same random weights: logits within 1e-4 of the largest |logit|.

In bfloat16, transformers computes in float32 with what is rounded in the same way: matrices, keys and values, and rows
where those are. What is left are numbers that lie so near the middle of two that they are rounded otherwise: 5e-3.
Where rows are rounded there are more of these, and also weights of attention, which transformers does not round: 5e-2.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from headrace.config.model_files import read_model_facts
from headrace.model.loader.checkpoint import open_checkpoint
from headrace.model.loader.loader import load_program
from headrace.model.ops import Backend
from tests.conformance.batches import step_inputs
from tests.conformance.implementations import Implementation

Float32 = NDArray[np.float32]

MAX_LENGTH = 160
BLOCK_SIZE = 16
CASES = [
    # head_dim, heads, KV heads, tied, stored as, largest file
    (32, 4, 2, True, torch.float32, "10GB"),
    (64, 9, 3, False, torch.float32, "200KB"),
    (80, 2, 2, True, torch.bfloat16, "10GB"),
    (128, 3, 1, False, torch.float16, "10GB"),
]
# trained on few positions, so that those of the test are far beyond
SCALINGS = [
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32},
]


def make_reference(implementation: Implementation, folder: Path) -> LlamaForCausalLM:
    """transformers' model, that rounds what the implementation rounds and computes in float32."""

    def attend(
        module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any
    ) -> tuple[torch.Tensor, None]:
        query = rounded(query * more.pop("scaling"), implementation.as_multiplied)
        key, value = rounded(key, implementation.as_stored), rounded(value, implementation.as_stored)
        return sdpa_attention_forward(module, query, key, value, *rest, scaling=1.0, **more)

    AttentionInterface.register("rounded", attend)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="rounded").eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data = rounded(parameter.data, implementation.as_stored)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, inputs: rounded(inputs[0], implementation.as_multiplied))
    return model


def rounded(values: torch.Tensor, rounding: Callable[[Float32], Float32]) -> torch.Tensor:
    return torch.from_numpy(rounding(values.numpy()))


def make_model(folder: Path, *, dtype: torch.dtype = torch.float32, shard_size: str = "10GB", **shape: object) -> None:
    """A small model of random weights."""
    config = LlamaConfig(
        vocab_size=331,
        hidden_size=144,
        intermediate_size=176,
        num_hidden_layers=3,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        initializer_range=0.2,  # so large that attention has something to choose from
        **shape,
    )
    torch.manual_seed(config.head_dim)
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard_size)


def bound_for(implementation: Implementation) -> float:
    if implementation.dtype == "float32":
        return 1e-4
    return 5e-2 if implementation.rounds_rows else 5e-3


def check_logits(implementation: Implementation, backend: Backend, folder: Path) -> None:
    tokens = np.random.default_rng(1).integers(0, 331, (2, MAX_LENGTH)).astype(np.int32)
    with torch.no_grad():
        expected = make_reference(implementation, folder)(torch.from_numpy(tokens).long()).logits.numpy()
    logits = compute_logits(backend, folder, tokens)
    assert np.abs(logits - expected).max() <= bound_for(implementation) * np.abs(expected).max()


def compute_logits(backend: Backend, folder: Path, tokens: NDArray[np.int32]) -> Float32:
    """Of two requests: the first in chunks and then token by token, the second beside it in two pieces."""
    facts = read_model_facts(folder)
    program = load_program(
        facts, open_checkpoint(facts, "auto", 0), backend.memory, num_positions=MAX_LENGTH, num_threads=2
    )
    num_blocks = MAX_LENGTH // BLOCK_SIZE
    backend.memory.allocate_kv_cache(program.attention_layers, 2 * num_blocks, BLOCK_SIZE)
    tables = np.random.default_rng(0).permutation(2 * num_blocks).astype(np.int32).reshape(2, num_blocks)
    logits = np.full((2, MAX_LENGTH, facts.vocab_size), np.nan, np.float32)
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
    return logits


@pytest.mark.parametrize(("head_dim", "heads", "kv_heads", "tied", "dtype", "shard_size"), CASES)
def test_logits_of_prefill_and_decode(
    implementation: Implementation,
    backend: Backend,
    tmp_path: Path,
    head_dim: int,
    heads: int,
    kv_heads: int,
    tied: bool,
    dtype: torch.dtype,
    shard_size: str,
) -> None:
    make_model(
        tmp_path,
        dtype=dtype,
        shard_size=shard_size,
        head_dim=head_dim,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=tied,
    )
    check_logits(implementation, backend, tmp_path)


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling["rope_type"])
def test_scaled_rope(
    implementation: Implementation, backend: Backend, tmp_path: Path, scaling: dict[str, object]
) -> None:
    make_model(
        tmp_path,
        head_dim=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        rope_parameters={"rope_theta": 10000.0, **scaling},
    )
    check_logits(implementation, backend, tmp_path)
