"""A llama with random weights in a folder: two layers, any heads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


@dataclass(frozen=True)
class Shape:
    head_dim: int
    num_heads: int
    num_kv_heads: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int = 331
    is_tied: bool = True


def write_model(folder: Path, shape: Shape, seed: int = 0) -> None:
    """Weights have a spread that makes attention and the answers decided, not flat: a wrong bit has consequences."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": 2,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": shape.is_tied,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    hidden, inner = shape.hidden_size, shape.intermediate_size
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    sizes = {"model.embed_tokens.weight": (shape.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not shape.is_tied:
        sizes["lm_head.weight"] = (shape.vocab_size, hidden)
    for i in range(2):
        of_layer = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        sizes |= {f"model.layers.{i}.{name}.weight": size for name, size in of_layer.items()}
    rng = np.random.default_rng(seed)
    tensors = {
        name: rng.standard_normal(size, np.float32) * np.float32(0.1) + np.float32(len(size) == 1)
        for name, size in sizes.items()
    }
    save_file(tensors, folder / "model.safetensors")
