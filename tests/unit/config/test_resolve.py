"""Every rule that joins more than one setting, and the flags' bounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headrace.config.resolve as resolve_module
from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.errors import ConfigError
from tests.tiny_model import TINY_CONFIG


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG))
    return str(folder)


def test_defaults(model):
    config = resolve(EngineConfig(model=model))
    assert config.model.served_model_name == "tiny"
    assert config.model.max_model_len == 8192
    assert config.model.tokenizer == model
    assert config.limits.vocab_size == 49152


# in place of the extension: a module that is there, and one that is not
@pytest.mark.parametrize(("kernels", "backend", "budget"), [("json", "native", 512), ("no_such_module", "numpy", 64)])
def test_the_native_kernels_are_the_default_where_they_are_installed(model, monkeypatch, kernels, backend, budget):
    monkeypatch.setattr(resolve_module, "NATIVE_KERNELS", kernels)
    config = resolve(EngineConfig(model=model))
    assert config.worker.backend == backend
    assert config.scheduler.max_num_batched_tokens == budget
    assert resolve(EngineConfig(model=model, backend="numpy")).worker.backend == "numpy"


def test_weights_keep_their_precision_unless_told_otherwise(model):
    def dtype(torch_dtype=None, **settings):
        config = TINY_CONFIG | ({"torch_dtype": torch_dtype} if torch_dtype else {})
        (Path(model) / "config.json").write_text(json.dumps(config))
        return resolve(EngineConfig(model=model, backend=settings.pop("backend", "native"), **settings)).model.dtype

    assert dtype("float32") == "float32"
    assert dtype("bfloat16") == dtype("float16") == "bfloat16"
    assert dtype("bfloat16", dtype="float32") == "float32"
    assert dtype("float32", dtype="bfloat16") == "bfloat16"
    assert dtype("bfloat16", backend="numpy") == "float32"
    with pytest.raises(ConfigError, match="--dtype: the numpy backend computes in float32 alone"):
        dtype(backend="numpy", dtype="bfloat16")


def test_few_bits_need_the_native_kernels(model):
    with pytest.raises(ConfigError, match="float32 alone") as refusal:
        resolve(EngineConfig(model=model, backend="numpy", quantization="int8"))
    assert refusal.value.flag == "--quantization"
    assert resolve(EngineConfig(model=model, backend="native", quantization="int8")).model.quantization == "int8"


def test_the_kv_cache_has_the_dtype_of_the_model_unless_told_otherwise(model):
    def kept(**settings):
        return resolve(EngineConfig(**({"model": model, "backend": "native"} | settings))).cache.kv_cache_dtype

    assert kept(dtype="float32") == "float32"
    assert kept(dtype="bfloat16") == kept(dtype="bfloat16", kv_cache_dtype="auto") == "bfloat16"
    assert kept(dtype="float32", kv_cache_dtype="bfloat16") == "bfloat16"
    assert kept(kv_cache_dtype="int8") == kept(kv_cache_dtype="int8", backend="numpy") == "int8"
    assert kept(kv_cache_dtype="fp8") == kept(kv_cache_dtype="fp8_e4m3") == "fp8"
    with pytest.raises(
        ConfigError, match="--kv-cache-dtype: 'fp8_e5m2' is not one of auto, bfloat16, int8, fp8, fp8_e4m3"
    ):
        kept(kv_cache_dtype="fp8_e5m2")
    with pytest.raises(
        ConfigError, match="--kv-cache-dtype: the numpy backend keeps its KV cache in float32, int8 or fp8"
    ):
        kept(kv_cache_dtype="bfloat16", backend="numpy")


def test_budget_has_room_for_every_running_request(model):
    config = resolve(EngineConfig(model=model, backend="numpy", max_num_seqs=200))
    assert config.scheduler.max_num_batched_tokens == 200
    with pytest.raises(ConfigError, match=r"--max-num-batched-tokens: 16 is less than --max-num-seqs \(32\)"):
        resolve(EngineConfig(model=model, max_num_seqs=32, max_num_batched_tokens=16))


def test_the_limit_of_prefill_beside_decodes(model):
    scheduler = resolve(EngineConfig(model=model)).scheduler
    assert (scheduler.prefill_tokens_per_request, scheduler.min_prefill_limit) == (4, 64)
    scheduler = resolve(EngineConfig(model=model, prefill_tokens_per_request=0)).scheduler
    assert (scheduler.prefill_tokens_per_request, scheduler.min_prefill_limit) == (0, 64)


def test_context_is_bounded_by_the_model(model):
    assert resolve(EngineConfig(model=model, max_model_len=100)).limits.max_model_len == 100
    with pytest.raises(ConfigError, match="--max-model-len: 9000 is more than the 8192 positions"):
        resolve(EngineConfig(model=model, max_model_len=9000))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_flag(model, host):
    assert resolve(EngineConfig(model=model, host=host)).server.host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_a_public_address_is_refused_unless_forced(model, host):
    with pytest.raises(ConfigError, match="--allow-unauthenticated"):
        resolve(EngineConfig(model=model, host=host))
    assert resolve(EngineConfig(model=model, host=host, allow_unauthenticated=True)).server.host == host


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        resolve(EngineConfig(model=str(tmp_path / "nowhere")))


@pytest.mark.parametrize("text", ["{{ messages }}", "{% if x %}y{% endif %}"])
def test_a_chat_template_is_a_text_or_a_file(model, tmp_path, text):
    assert resolve(EngineConfig(model=model)).model.chat_template is None
    assert resolve(EngineConfig(model=model, chat_template=text)).model.chat_template == text
    path = tmp_path / "chat.jinja"
    path.write_text(f"{text} äöü", encoding="utf-8")
    assert resolve(EngineConfig(model=model, chat_template=str(path))).model.chat_template == f"{text} äöü"


def test_a_chat_template_that_cannot_be_read(model, tmp_path):
    (tmp_path / "latin").write_bytes(b"\xe9")
    for path, words in (
        (tmp_path / "nowhere", "cannot be read"),
        (tmp_path, "cannot be read"),
        ("a\0b", "cannot be read"),
        (tmp_path / "latin", "not UTF-8"),
    ):
        with pytest.raises(ConfigError, match=rf"^--chat-template: .*{words}"):
            resolve(EngineConfig(model=model, chat_template=str(path)))
