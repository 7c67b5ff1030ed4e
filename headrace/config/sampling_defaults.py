"""Sampling parameters that a model's makers recommend (generation_config.json), and what the operator says instead."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.config.engine_config import EngineConfig
from headrace.config.limits import Limits
from headrace.contracts.sampling_params import SamplingParams
from headrace.errors import ConfigError, InvalidParameterError
from headrace.formats.hf_config import GENERATION_CONFIG_FILE
from headrace.formats.json_file import read_json_object

FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
FROM_MODEL, NOTHING = "auto", "none"


def sampling_defaults(config: EngineConfig, model: Path, limits: Limits) -> dict[str, int | float]:
    """By field of `SamplingParams`, for requests that do not say. Raises `ConfigError` or `ModelFormatError`."""
    found = _recommended(config.generation_config, model)
    found |= _said(config.override_generation_config)
    try:
        SamplingParams(**found).check(limits)  # type: ignore[arg-type]  # `check` looks at the types, too
    except InvalidParameterError as error:
        raise ConfigError(f"the default {error.message}", flag="--override-generation-config") from None
    return found  # type: ignore[return-value]


def _recommended(source: str, model: Path) -> dict[str, object]:
    if source == NOTHING:
        return {}
    folder = model if source == FROM_MODEL else Path(source).expanduser()
    path = folder / GENERATION_CONFIG_FILE
    if not path.is_file():
        if source == FROM_MODEL:
            return {}  # a .gguf file, or a folder without one
        raise ConfigError(f"there is no {path}", flag="--generation-config")
    recommended = read_json_object(path)
    return {name: recommended[name] for name in FIELDS if recommended.get(name) is not None}


def _said(text: str | None) -> dict[str, object]:
    if text is None:
        return {}
    flag = "--override-generation-config"
    try:
        said = json.loads(text)
    except ValueError as error:
        raise ConfigError(f'it must be JSON, such as {{"temperature": 0.5}}: {error}', flag=flag) from None
    unknown = [name for name in said if name not in FIELDS] if isinstance(said, dict) else [text]
    if unknown:
        raise ConfigError(f"it can set {', '.join(FIELDS)}, and not {unknown[0]}", flag=flag)
    return said  # type: ignore[no-any-return]
