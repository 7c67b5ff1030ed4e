"""Frequencies and factors against transformers', which computes in float32: equal to 1e-6."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from headrace.config.hf_rope import read_rope
from headrace.model import rope

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
CASES = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.5},
    LLAMA3,
    LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 300},
    YARN,
    YARN | {"truncate": False},
    YARN | {"beta_fast": 20, "beta_slow": 2.5, "original_max_position_embeddings": 100},
    YARN | {"attention_factor": 1.25},
    YARN | {"factor": 40, "mscale": 0.707, "mscale_all_dim": 1.3},
    YARN | {"factor": 40, "mscale": 0.707},
    YARN | {"factor": 0.5},
    YARN | {"original_max_position_embeddings": 2},  # no pair turns so often: the ramp has no width
    {"type": "yarn", "factor": 16.0},  # trained on max_position_embeddings
]


@pytest.mark.parametrize("base", [10000.0, 500000.0, 1e6])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("parameters", CASES, ids=str)
def test_as_transformers(parameters: dict[str, object], head_dim: int, base: float) -> None:
    settings = {"rope_parameters": parameters | {"rope_theta": base}, "max_position_embeddings": 4096}
    facts = read_rope(settings, "config.json", head_dim)
    config = LlamaConfig(head_dim=head_dim, **settings)
    word = config.rope_parameters["rope_type"]
    compute = ROPE_INIT_FUNCTIONS.get(word, LlamaRotaryEmbedding.compute_default_rope_parameters)
    expected, factor = compute(config)
    frequencies = rope.frequencies(facts)
    assert frequencies.dtype == np.float64
    np.testing.assert_allclose(frequencies, expected.numpy(), rtol=1e-6)
    np.testing.assert_allclose(rope.table_factor(facts), factor, rtol=1e-12)
