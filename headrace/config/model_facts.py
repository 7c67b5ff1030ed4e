"""What a model is, as its files say: read once before start, without weights, numpy or tokenizer."""

from __future__ import annotations

import msgspec


class LinearScaling(msgspec.Struct, frozen=True, tag="linear"):
    factor: float


class Llama3Scaling(msgspec.Struct, frozen=True, kw_only=True, tag="llama3"):
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


class YarnScaling(msgspec.Struct, frozen=True, kw_only=True, tag="yarn"):
    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None  # None: follows from the factor and the two below
    mscale: float | None = None
    mscale_all_dim: float | None = None


class RopeFacts(msgspec.Struct, frozen=True):
    """Rotary position embedding: angle of pair i at position p is p * base ** (-2 i / dim), unless it is scaled.

    `model.rope` computes what is said here; names follow transformers.
    """

    base: float
    dim: int  # of each head's dimensions, how many are rotated
    scaling: LinearScaling | Llama3Scaling | YarnScaling | None = None


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
