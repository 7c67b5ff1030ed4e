"""ModelFacts from the config.json of a Hugging Face folder."""

from __future__ import annotations

import math
from pathlib import Path

from headrace.config.hf_rope import read_rope
from headrace.config.model_facts import ModelFacts
from headrace.errors import ModelFormatError, UnsupportedModelError
from headrace.formats.hf_config import HFConfig, read_hf_config
from headrace.formats.safetensors import has_safetensors, read_safetensors

ARCHITECTURES = {"LlamaForCausalLM": "llama"}  # config.json's word -> key in model.registry

# Settings that would change the arithmetic, with the values under which they do not. The first is what a missing
# setting means.
_NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1.0, None),
    "sliding_window": (None,),
    "use_sliding_window": (False,),
    "layer_types": (None,),
    "quantization_config": (None,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "query_pre_attn_scalar": (None,),
    "no_rope_layers": (None,),
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "num_local_experts": (None, 0),
}


def read_hf_facts(folder: Path) -> ModelFacts:
    """Raises `ModelFormatError` or `UnsupportedModelError`."""
    files = read_hf_config(folder)
    names = files.config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{files.path}: the architecture {name!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    return _Reader(files).facts(ARCHITECTURES[name], folder)


class _Reader:
    def __init__(self, files: HFConfig) -> None:
        self.files = files
        self.config = files.config

    def facts(self, architecture: str, folder: Path) -> ModelFacts:
        for setting, neutral in _NEUTRAL_VALUES.items():
            if self.config.get(setting, neutral[0]) not in neutral:
                raise self.unsupported(setting, self.config[setting])
        hidden_size = self.integer("hidden_size")
        num_heads = self.integer("num_attention_heads")
        head_dim = self.integer("head_dim", hidden_size // num_heads)
        return ModelFacts(
            architecture=architecture,
            checkpoint_format="safetensors",
            path=str(folder),
            vocab_size=self.integer("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=self.integer("intermediate_size"),
            num_hidden_layers=self.integer("num_hidden_layers"),
            num_attention_heads=num_heads,
            num_key_value_heads=self.integer("num_key_value_heads", num_heads),
            head_dim=head_dim,
            max_position_embeddings=self.integer("max_position_embeddings"),
            rms_norm_eps=self.number("rms_norm_eps", self.config.get("rms_norm_eps", 1e-6)),
            rope=read_rope(self.config, self.files.path, head_dim),
            tie_word_embeddings=self.config.get("tie_word_embeddings", False) is True,
            eos_token_ids=self.files.eos_token_ids,
            bos_token_id=self.bos_token_id(),
            num_parameters=_count_parameters(folder),
            has_float32_weights=self.has_float32_weights(folder),
        )

    def has_float32_weights(self, folder: Path) -> bool:
        """As stored; where there are no weights, as config.json says."""
        if not has_safetensors(folder):
            dtype = self.config.get("dtype", self.config.get("torch_dtype"))
            return dtype in ("float32", None)  # a missing one means float32
        tensors = read_safetensors(folder).tensors.values()
        return all(tensor.dtype == "F32" for tensor in tensors if len(tensor.shape) > 1)

    def bos_token_id(self) -> int | None:
        value = self.config.get("bos_token_id")
        return value if isinstance(value, int) else None

    def integer(self, setting: str, default: int | None = None) -> int:
        value = self.config.get(setting)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise ModelFormatError(f"{self.files.path}: {setting} is {value!r}, not a positive integer")
        return value

    def number(self, setting: str, value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise ModelFormatError(f"{self.files.path}: {setting} is {value!r}, not a positive number")
        return float(value)

    def unsupported(self, setting: str, value: object) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.files.path}: {setting} = {value!r} is not supported")


def _count_parameters(folder: Path) -> int:
    """0 where there are no weights: `--load-format dummy` needs none."""
    if not has_safetensors(folder):
        return 0
    return sum(math.prod(tensor.shape) for tensor in read_safetensors(folder).tensors.values())
