"""What a model is, as its files say: read once before start, without weights, numpy or tokenizer."""

from __future__ import annotations

import msgspec


class RopeFacts(msgspec.Struct, frozen=True):
    """Rotary position embedding: angle of pair i at position p is p * base ** (-2 i / dim)."""

    base: float
    dim: int  # of each head's dimensions, how many are rotated


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a decoder and what its files say about tokens. Names follow Hugging Face's config.json."""

    architecture: str  # key of model.registry, such as "llama"
    checkpoint_format: str  # "gguf" or "safetensors"
    path: str  # the .gguf file or the folder
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeFacts
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]  # every id that ends a generation: eos, end of turn, end of message
    bos_token_id: int | None = None
    num_parameters: int = 0  # counted from the tensor list, for the memory plan
    has_float32_weights: bool = False  # all matrices are stored as float32
