"""Servers for whole-server tests: a random model of two layers with the demo model's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.config.model_files import locate_model
from tests.system.server import Server

TINY_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG))
    return folder


@pytest.fixture
def start_server(tiny_model: Path) -> Iterator[Callable[..., Server]]:
    """Start servers of the tiny model with more flags; all are gone after the test."""
    servers: list[Server] = []

    def start(*flags: str, **options: object) -> Server:
        tokenizer = str(locate_model(""))
        servers.append(
            Server(str(tiny_model), "--load-format", "dummy", "--tokenizer", tokenizer, "--max-model-len", "256", *flags, **options)
        )
        return servers[-1]

    yield start
    for server in servers:
        server.close()
