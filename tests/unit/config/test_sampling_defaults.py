"""Where the defaults of sampling parameters come from."""

from __future__ import annotations

import json

import pytest

from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.errors import ConfigError, ModelFormatError
from tests.unit.config.test_resolve import TINY_CONFIG

RECOMMENDED = {"temperature": 0.6, "top_k": 20, "do_sample": True, "eos_token_id": [2], "top_p": None, "max_length": 9}


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG))
    (folder / "generation_config.json").write_text(json.dumps(RECOMMENDED))
    return folder


def defaults(model, **settings) -> dict:
    return resolve(EngineConfig(model=str(model), **settings)).model.sampling_defaults


def test_the_models_own_come_first_and_the_operator_has_the_last_word(model, tmp_path):
    assert defaults(model) == {"temperature": 0.6, "top_k": 20}
    assert defaults(model, generation_config="none") == {}
    assert defaults(model, override_generation_config='{"top_k": 5, "min_p": 0.1}') == {
        "temperature": 0.6, "top_k": 5, "min_p": 0.1,
    }  # fmt: skip
    (tmp_path / "generation_config.json").write_text('{"top_p": 0.5}')
    assert defaults(model, generation_config=str(tmp_path)) == {"top_p": 0.5}
    assert defaults("") == {}  # a .gguf file


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"generation_config": "/nowhere"}, "--generation-config: there is no /nowhere"),
        ({"override_generation_config": "{"}, "it must be JSON"),
        ({"override_generation_config": "[]"}, "it can set temperature"),
        ({"override_generation_config": '{"seed": 1}'}, "and not seed"),
        ({"override_generation_config": '{"top_p": 2}'}, "the default top_p must be"),
        ({"override_generation_config": '{"top_k": "many"}'}, "the default top_k must be an integer"),
    ],
)
def test_what_is_wrong_is_said_at_the_start(model, settings, words):
    with pytest.raises(ConfigError, match=words):
        defaults(model, **settings)


def test_a_file_that_is_no_json(model):
    (model / "generation_config.json").write_text("no")
    with pytest.raises(ModelFormatError):
        defaults(model)
