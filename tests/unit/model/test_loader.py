from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.backends.numpy.memory import Matrix, NumpyMemory
from headrace.config.model_facts import ModelFacts
from headrace.config.model_files import read_model_facts
from headrace.errors import ModelFormatError, UnsupportedModelError
from headrace.model.loader.checkpoint import DummyCheckpoint, open_checkpoint
from headrace.model.loader.loader import load_program, rows_to_halves
from headrace.model.ops import StoredTensor, Weight
from headrace.model.registry import find_architecture
from headrace.model.weights import CheckpointNames, MatrixSpec, Part, WeightSpec
from tests.tiny_model import TINY_CONFIG

SMALL = TINY_CONFIG | {"vocab_size": 20}


def tensors(*, tied: bool = True) -> dict[str, np.ndarray]:
    """Every tensor of SMALL under its name in a Hugging Face checkpoint."""
    shapes = {"model.embed_tokens.weight": (20, 64), "model.norm.weight": (64,)}
    if not tied:
        shapes["lm_head.weight"] = (20, 64)
    for layer in range(2):
        at = f"model.layers.{layer}."
        shapes |= {at + f"{name}.weight": (64,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {at + f"self_attn.{name}_proj.weight": (64, 64) for name in ("q", "o")}
        shapes |= {at + f"self_attn.{name}_proj.weight": (32, 64) for name in ("k", "v")}
        shapes |= {at + f"mlp.{name}_proj.weight": (128, 64) for name in ("gate", "up")}
        shapes[at + "mlp.down_proj.weight"] = (64, 128)
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def load(folder: Path, content: dict[str, np.ndarray], **config: object) -> object:
    (folder / "config.json").write_text(json.dumps(SMALL | config))
    save_file(content, folder / "model.safetensors")
    facts = read_model_facts(folder)
    checkpoint = open_checkpoint(facts, "auto", 0)
    return load_program(facts, checkpoint, NumpyMemory(), num_positions=16, num_threads=2)


def test_fused_matrices_have_the_parts_in_order(tmp_path: Path) -> None:
    content = tensors()
    program = load(tmp_path, content)
    at = "model.layers.1."
    layer = program.layers[1]
    parts = [content[at + f"self_attn.{name}_proj.weight"] for name in "qkv"]
    assert layer.qkv.rows.tobytes() == np.concatenate(parts).tobytes()
    parts = [content[at + f"mlp.{name}_proj.weight"] for name in ("gate", "up")]
    assert layer.gate_up.rows.tobytes() == np.concatenate(parts).tobytes()
    assert layer.norm2.tobytes() == content[at + "post_attention_layernorm.weight"].tobytes()


def test_tied_and_untied_heads(tmp_path: Path) -> None:
    assert (tied := load(tmp_path, tensors())).lm_head is tied.embed
    stored_twice = tensors(tied=False)
    assert (tied := load(tmp_path, stored_twice)).lm_head is tied.embed
    untied = load(tmp_path, stored_twice, tie_word_embeddings=False)
    assert untied.lm_head.rows.tobytes() == stored_twice["lm_head.weight"].tobytes()


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    content = tensors()
    del content["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(ModelFormatError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' is missing"):
        load(tmp_path, content)
    with pytest.raises(ModelFormatError, match=r"'lm_head\.weight' is missing"):
        load(tmp_path, tensors(), tie_word_embeddings=False)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    content = tensors() | {"model.norm.weight": np.ones(65, np.float32)}
    with pytest.raises(ModelFormatError, match=r"'model\.norm\.weight' has shape \[65\], the model needs \[64\]"):
        load(tmp_path, content)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.input_layernorm.weight"])
def test_a_tensor_that_the_program_would_leave_out_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=name):
        load(tmp_path, tensors() | {name: np.ones(64, np.float32)})


def test_a_tensor_that_is_known_to_be_needless_is_left_out(tmp_path: Path) -> None:
    load(tmp_path, tensors() | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)})


def test_a_stored_type_that_the_backend_does_not_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'model\.norm\.weight' has the type F64"):
        load(tmp_path, tensors() | {"model.norm.weight": np.ones(64, np.float64)})


def interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the rows of q and k."""
    return rows.reshape(num_heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 2), (3, 8), (2, 80)])
def test_interleaved_rows_go_back_to_halves(num_heads: int, head_dim: int) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (num_heads * head_dim, 20)).astype(np.uint8)
    stored = StoredTensor("q", "Q4_1", (num_heads * head_dim, 32), interleave(rows, num_heads).data.cast("B"))
    assert bytes(rows_to_halves(stored, num_heads).data) == rows.tobytes()


class Recorder:
    """A checkpoint that says what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.released: list[str] = []

    def names(self) -> Iterable[str]:
        return ()

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        self.asked.append(name)
        return DummyCheckpoint(0).tensor(name, shape)

    def release(self, name: str) -> None:
        assert name in self.asked
        self.released.append(name)


@pytest.fixture
def facts(tmp_path: Path) -> ModelFacts:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    return read_model_facts(tmp_path)


@pytest.mark.parametrize("checkpoint_format", ["gguf", "safetensors"])
def test_every_part_has_a_name_in_every_checkpoint_format(facts: ModelFacts, checkpoint_format: str) -> None:
    changed = type(facts)(
        **{name: getattr(facts, name) for name in facts.__struct_fields__}
        | {"checkpoint_format": checkpoint_format, "tie_word_embeddings": False}
    )
    recorder = Recorder()
    load_program(changed, recorder, NumpyMemory(), num_positions=16, num_threads=1)
    assert len(set(recorder.asked)) == len(recorder.asked) == len(tensors(tied=False))
    assert sorted(recorder.released) == sorted(recorder.asked)


class Biased:
    """An architecture of one matrix, whose first part is stored with interleaved rows."""

    parts = (Part("layers.0.q", (64, 64), 4), Part("layers.0.v", (32, 64)))
    biases = (Part("layers.0.q_bias", (64,), 4), Part("layers.0.v_bias", (32,)))
    checkpoints: ClassVar = {
        "safetensors": CheckpointNames(
            {"layers.{}.q": "q", "layers.{}.v": "v", "layers.{}.q_bias": "q.bias", "layers.{}.v_bias": "v.bias"},
            interleaved=frozenset({"layers.{}.q", "layers.{}.q_bias"}),
        )
    }

    def __init__(self, facts: ModelFacts, weights: Mapping[str, Weight]) -> None:
        self.qv = weights["qv"]

    @staticmethod
    def weight_specs(facts: ModelFacts) -> list[WeightSpec]:
        return [MatrixSpec("qv", Biased.parts, biases=Biased.biases)]


def test_biases_come_with_their_matrix_and_are_turned_as_its_rows(
    facts: ModelFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    shapes = {"q": (64, 64), "v": (32, 64), "q.bias": (64,), "v.bias": (32,)}
    content = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    save_file(content, tmp_path / "model.safetensors")
    monkeypatch.setattr("headrace.model.loader.loader.find_architecture", lambda word: Biased)
    program = load_program(facts, open_checkpoint(facts, "auto", 0), NumpyMemory(), num_positions=16, num_threads=1)
    turned = content["q.bias"].reshape(4, 8, 2).swapaxes(1, 2).reshape(-1)
    assert program.qv.bias.tolist() == [*turned.tolist(), *content["v.bias"].tolist()]


def test_dummy_weights_depend_on_seed_and_name_alone() -> None:
    def first(seed: int, name: str) -> bytes:
        return bytes(DummyCheckpoint(seed).tensor(name, (4, 8)).data)

    assert first(1, "a") == first(1, "a")
    assert len({first(1, "a"), first(2, "a"), first(1, "b"), first(-1, "a")}) == 4
    norm = DummyCheckpoint(1).tensor("norm", (4,))
    assert np.frombuffer(norm.data, np.float32).tolist() == [1, 1, 1, 1]


def test_packed_sizes_are_the_planned_ones(facts: ModelFacts) -> None:
    memory = NumpyMemory()
    matrix = memory.pack_matrix([DummyCheckpoint(0).tensor("m", (77, 33))])
    assert isinstance(matrix, Matrix)
    assert matrix.rows.nbytes == memory.matrix_bytes([(77, "F32")], 33)
    table = memory.rope_table(np.ones(8), 100)
    assert table.cos.nbytes + table.sin.nbytes == memory.rope_bytes(16, 100)
    layers = find_architecture(facts.architecture).attention_specs(facts)
    memory.allocate_kv_cache(layers, 5, 16)
    allocated = sum(cache.keys.nbytes + cache.values.nbytes for cache in memory.kv_caches.values())
    assert allocated == 5 * memory.kv_block_bytes(layers, 16)


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'mamba'.*llama"):
        find_architecture("mamba")
