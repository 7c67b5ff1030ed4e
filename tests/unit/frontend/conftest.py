"""The demo model's tokenizer, a small configuration, and servers over a fake engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.config.resolved import HeadraceConfig
from headrace.frontend.input_processor import InputProcessor
from headrace.frontend.tokenizer.tokenizer import Tokenizer
from tests.unit.frontend.fake_engine import Script
from tests.unit.frontend.serving import MAX_MODEL_LEN, Scenario, run_scenario, script_of


@pytest.fixture(scope="session")
def config() -> HeadraceConfig:
    return resolve(EngineConfig(max_model_len=MAX_MODEL_LEN, served_model_name=("demo",)))


@pytest.fixture(scope="session")
def input_processor(config: HeadraceConfig) -> InputProcessor:
    return InputProcessor.from_config(config)


@pytest.fixture(scope="session")
def tokenizer(input_processor: InputProcessor) -> Tokenizer:
    return input_processor.tokenizer


@pytest.fixture
def run(config: HeadraceConfig, input_processor: InputProcessor) -> Callable[..., None]:
    """`run(scenario, script)` runs an async scenario with a server of its own."""

    def run(scenario: Scenario, script: Script = lambda request: (), *, is_ready: bool = True) -> None:
        run_scenario(config, input_processor, scenario, script, is_ready=is_ready)

    return run


@pytest.fixture
def says(tokenizer: Tokenizer) -> Callable[..., Script]:
    """`says("a text")`: a script that generates this text and then ends. `says("one", "two")` gives each request the
    text of its turn."""
    return lambda *texts: script_of(tokenizer, texts)
