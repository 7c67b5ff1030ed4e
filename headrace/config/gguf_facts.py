"""ModelFacts from the metadata of a GGUF file.

The keys of an architecture are an allow-list: whatever stands in the file beyond them could change the arithmetic, so
it is refused by name and not ignored.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TypeVar

from headrace.config.model_facts import LinearScaling, ModelFacts, RopeFacts, YarnScaling
from headrace.errors import ModelFormatError, UnsupportedModelError
from headrace.formats.gguf import GGUFFile, read_gguf

T = TypeVar("T", int, float)

ARCHITECTURES = ("llama",)  # general.architecture; the same word is the key in model.registry

# Keys below "llama." that become facts, and keys whose value must be the one that changes nothing.
_FACT_KEYS = frozenset({
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count", "rope.scaling.type",
    "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
    "rope.scaling.finetuned",
})  # fmt: skip
_NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "rope.scale_linear": (1.0,),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "tensor_data_layout": ("Meta AI original pth",),  # the usual interleaved rows of q and k
}

# Texts that end a turn in the chat templates in use. The model stops there even if its eos key names another token.
_TURN_END_TEXTS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|end_of_turn|>", "<|return|>",
)  # fmt: skip


def read_gguf_facts(path: Path) -> ModelFacts:
    """Raises `ModelFormatError` or `UnsupportedModelError`."""
    file = read_gguf(path)
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{path}: the architecture {architecture!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    return _Reader(file, str(architecture)).facts()


class _Reader:
    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self.file = file
        self.metadata = file.metadata
        self.architecture = architecture

    def facts(self) -> ModelFacts:
        self.refuse_unknown_keys()
        hidden_size = self.integer("embedding_length")
        num_heads = self.integer("attention.head_count")
        head_dim = self.integer("attention.key_length", hidden_size // num_heads)
        self.require_equal("attention.value_length", head_dim)
        self.require_equal("rope.dimension_count", head_dim)
        return ModelFacts(
            architecture=self.architecture,
            checkpoint_format="gguf",
            path=str(self.file.path),
            vocab_size=self.integer("vocab_size", self.metadata.length("tokenizer.ggml.tokens")),
            hidden_size=hidden_size,
            intermediate_size=self.integer("feed_forward_length"),
            num_hidden_layers=self.integer("block_count"),
            num_attention_heads=num_heads,
            num_key_value_heads=self.integer("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            max_position_embeddings=self.integer("context_length"),
            rms_norm_eps=self.number("attention.layer_norm_rms_epsilon"),
            rope=RopeFacts(self.number("rope.freq_base", 10000.0), head_dim, self.rope_scaling()),
            tie_word_embeddings="output.weight" not in self.file.tensors,
            eos_token_ids=self.eos_token_ids(),
            bos_token_id=self.token_id("bos"),
            num_parameters=sum(math.prod(tensor.shape) for tensor in self.file.tensors.values()),
            has_float32_weights=all(
                tensor.type.name == "F32" for tensor in self.file.tensors.values() if len(tensor.shape) > 1
            ),
        )

    def refuse_unknown_keys(self) -> None:
        prefix = self.architecture + "."
        for key in self.metadata:
            setting = key.removeprefix(prefix)
            if setting == key or setting in _FACT_KEYS:
                continue
            if self.metadata[key] not in _NEUTRAL_VALUES.get(setting, ()):
                raise UnsupportedModelError(f"{self.file.path}: {key} = {self.metadata[key]!r} is not supported")

    def rope_scaling(self) -> LinearScaling | YarnScaling | None:
        """As llama.cpp reads it (llama-model.cpp): a factor without a type is linear. Whether the model was trained
        with it (`finetuned`) changes nothing."""
        key = f"{self.architecture}.rope.scaling.type"
        word = self.metadata.get(key, "linear")
        if word not in ("none", "linear", "yarn"):
            raise UnsupportedModelError(f"{self.file.path}: {key} = {word!r} is not supported")
        factor = self.number("rope.scaling.factor", 1.0)
        attention_factor = self.number("rope.scaling.attn_factor", 1.0)
        if word == "yarn":
            return YarnScaling(
                factor=factor,
                original_max_position_embeddings=self.integer(
                    "rope.scaling.original_context_length", self.integer("context_length")
                ),
                # beside the one that YaRN has by itself (rope_yarn in ggml's ops.cpp)
                attention_factor=attention_factor * (1 + 0.1 * math.log(max(factor, 1.0))),
            )
        if attention_factor != 1:
            raise UnsupportedModelError(
                f"{self.file.path}: {self.architecture}.rope.scaling.attn_factor = {attention_factor} is supported "
                "with yarn alone"
            )
        return LinearScaling(factor) if word == "linear" and factor != 1 else None

    def require_equal(self, setting: str, expected: int) -> None:
        value = self.integer(setting, expected)
        if value != expected:
            raise UnsupportedModelError(
                f"{self.file.path}: {self.architecture}.{setting} = {value} is not supported, only the head size "
                f"{expected}"
            )

    def integer(self, setting: str, default: int | None = None) -> int:
        return self.value(setting, int, default, "a positive integer")

    def number(self, setting: str, default: float | None = None) -> float:
        return self.value(setting, float, default, "a positive number")

    def value(self, setting: str, kind: type[T], default: T | None, what: str) -> T:
        key = f"{self.architecture}.{setting}"
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelFormatError(f"{self.file.path}: lacks {key}")
        if not isinstance(value, kind) or isinstance(value, bool) or not 0 < value < math.inf:
            raise ModelFormatError(f"{self.file.path}: {key} is {value!r}, not {what}")
        return value

    def token_id(self, name: str) -> int | None:
        value = self.metadata.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) else None

    def eos_token_ids(self) -> tuple[int, ...]:
        """End of sequence, of turn and of message, and the turn-end token of the chat template."""
        ids = {found for name in ("eos", "eot", "eom") if (found := self.token_id(name)) is not None}
        known = {self.metadata.text_entry("tokenizer.ggml.tokens", token_id) for token_id in ids}
        template = self.metadata.get("tokenizer.chat_template", "")
        wanted = {text for text in _TURN_END_TEXTS if text in str(template)} - known
        if wanted:  # seldom: then the vocabulary has to be read
            tokens = self.metadata.get("tokenizer.ggml.tokens", [])
            ids |= {index for index, text in enumerate(tokens if isinstance(tokens, list) else []) if text in wanted}
        return tuple(sorted(ids))
