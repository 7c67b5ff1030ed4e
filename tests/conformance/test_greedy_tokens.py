"""Greedy tokens of the whole engine against transformers, whatever the schedule."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headrace.contracts.sampling_params import SamplingParams
from tests.conformance.engine_runs import make_client, run_requests
from tests.conformance.greedy_reference import assert_greedy

GAP = 1e-4  # where the reference's two best logits are closer than this, either may win
NUM_TOKENS = 16
VOCAB_SIZE = 331
MODELS = {
    "head-32-tied": {"head_dim": 32, "heads": 6, "kv_heads": 2, "tied": True},
    "head-64-untied": {"head_dim": 64, "heads": 4, "kv_heads": 1, "tied": False},
    "head-80-tied": {"head_dim": 80, "heads": 3, "kv_heads": 3, "tied": True},
    "head-128-untied": {"head_dim": 128, "heads": 4, "kv_heads": 2, "tied": False},
}


@pytest.fixture(scope="module", params=MODELS, ids=str)
def reference(request, tmp_path_factory):
    shape = MODELS[request.param]
    torch.manual_seed(shape["head_dim"])
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=shape["heads"] * shape["head_dim"],
        head_dim=shape["head_dim"],
        intermediate_size=200,
        num_hidden_layers=2,
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        max_position_embeddings=512,
        tie_word_embeddings=shape["tied"],
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).float().eval()
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return model, str(folder)


def prompts() -> dict[str, list[int]]:
    """50 prompts of 1 to 120 tokens; every third begins like another one, so that the prefix cache has something."""
    rng = random.Random(5)
    made: dict[str, list[int]] = {}
    for i in range(50):
        stem = made[f"p{i - 2}"][:64] if i % 3 == 2 else []
        made[f"p{i}"] = stem + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 120 - len(stem)))]
    return made


VARIANTS = {
    "baseline": {},
    "budget-16": {"max_num_batched_tokens": 16},
    "budget-4096": {"max_num_batched_tokens": 4096},
    "no-prefix-cache": {"enable_prefix_caching": False},
    "preempting": {"num_kv_blocks_override": 24, "max_model_len": 200},
    "block-5": {"block_size": 5},
}


def test_greedy_tokens(reference):
    model, folder = reference
    asked = prompts()
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=NUM_TOKENS)
    results = {}
    for name, settings in VARIANTS.items():
        client = make_client(model=folder, **({"max_num_batched_tokens": 64, "max_num_seqs": 16} | settings))
        results[name] = run_requests(client, asked, params)
        stats = client.engine_core.scheduler.stats()
        assert (stats.num_preemptions > 0) == (name == "preempting")
        assert (stats.prefix_cache_hits > 0) == (name != "no-prefix-cache")
    assert all(len(tokens) == NUM_TOKENS for tokens in results["baseline"].values())
    assert_greedy(model, asked, results["baseline"], GAP)
    for name, tokens in results.items():
        assert tokens == results["baseline"], f"{name} gives other tokens than baseline"
