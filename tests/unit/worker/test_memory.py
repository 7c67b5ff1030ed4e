from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.config.resolved import HeadraceConfig
from headrace.errors import ConfigError
from headrace.worker import memory
from headrace.worker.memory import plan_memory
from tests.installed_backends import INSTALLED_BACKENDS
from tests.tiny_model import TINY_CONFIG

MIB = 2**20
# 2 layers, keys and values, 2 KV heads of 16, float32, 16 tokens
BLOCK_BYTES = 2 * 2 * 2 * 16 * 4 * 16


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 1000 * MIB)


def config(folder: Path, **settings: object) -> HeadraceConfig:
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG))
    return resolve(EngineConfig(model=str(folder), load_format="dummy", **settings))


@pytest.mark.usefixtures("left")
def test_weights_are_counted_and_half_of_what_is_left_goes_to_the_cache(tmp_path: Path) -> None:
    plan = plan_memory(config(tmp_path, max_num_seqs=200))
    embed, rope, norms = 49152 * 64, 8192 * 16, 5 * 64
    layers = 2 * (64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 128)
    assert plan.weight_bytes == 4 * (embed + rope + norms + layers)
    assert plan.kv_block_bytes == BLOCK_BYTES
    left = 1000 * MIB - plan.weight_bytes - plan.step_bytes
    assert plan.num_kv_blocks == left // 2 // BLOCK_BYTES
    assert plan.num_full_requests == plan.num_kv_tokens // 8192


@pytest.mark.usefixtures("left")
def test_no_more_than_all_requests_can_use(tmp_path: Path) -> None:
    plan = plan_memory(config(tmp_path, max_num_seqs=3, max_model_len=100))
    assert plan.num_kv_blocks == 3 * 7


@pytest.mark.usefixtures("left")
def test_a_given_size_and_a_given_number(tmp_path: Path) -> None:
    given = config(tmp_path, max_model_len=64, kv_cache_memory=10 * BLOCK_BYTES + 1)
    assert plan_memory(given).num_kv_blocks == 10
    assert plan_memory(config(tmp_path, max_model_len=64, num_kv_blocks_override=5)).num_kv_blocks == 5


@pytest.mark.usefixtures("left")
@pytest.mark.parametrize("backend", INSTALLED_BACKENDS)
@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
def test_a_cache_of_8_bits_has_a_byte_for_each_element_and_a_scale_for_each_head(
    tmp_path: Path, backend: str, kv_cache_dtype: str
) -> None:
    block_bytes = 2 * 2 * 2 * (16 + 4) * 16
    settings = config(
        tmp_path, backend=backend, max_model_len=64, kv_cache_dtype=kv_cache_dtype, kv_cache_memory=10 * block_bytes + 1
    )
    plan = plan_memory(settings)
    assert (plan.kv_block_bytes, plan.num_kv_blocks) == (block_bytes, 10)
    assert f"KV cache {kv_cache_dtype}" in plan.render().splitlines()[0]


@pytest.mark.usefixtures("left")
@pytest.mark.parametrize(
    ("settings", "flag", "need"),
    [
        ({"kv_cache_memory": MIB}, "--kv-cache-memory", "4.0 MiB"),
    ],
)
def test_too_little_for_one_request_names_flag_and_need(
    settings: dict[str, int], flag: str, need: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        plan_memory(config(tmp_path, **settings))
    assert raised.value.flag == flag
    assert f"needs {need}" in raised.value.message


@pytest.mark.usefixtures("left")
def test_the_plan_reads_as_a_table(tmp_path: Path) -> None:
    plan = plan_memory(config(tmp_path, max_model_len=1024, max_num_seqs=2))
    lines = plan.render().splitlines()
    assert [line.split()[0] for line in lines] == ["backend", "weights", "activations", "KV", "total"]
    assert "128 blocks of 16 = 2048 tokens" in lines[3]
    assert "2 requests of 1024 tokens" in lines[4]
