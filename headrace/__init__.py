"""headrace: an LLM serving engine. Public names are imported when first used, so that `import headrace` is free."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.config.engine_config import EngineConfig
    from headrace.contracts.sampling_params import SamplingParams
    from headrace.frontend.async_llm import AsyncLLM
    from headrace.frontend.llm import LLM
    from headrace.frontend.llm_engine import LLMEngine
    from headrace.frontend.request_output import RequestOutput

__version__ = "0.1.0"

_PUBLIC = {
    "LLM": "headrace.frontend.llm",
    "LLMEngine": "headrace.frontend.llm_engine",
    "AsyncLLM": "headrace.frontend.async_llm",
    "SamplingParams": "headrace.contracts.sampling_params",
    "EngineConfig": "headrace.config.engine_config",
    "RequestOutput": "headrace.frontend.request_output",
}

__all__ = ["LLM", "AsyncLLM", "EngineConfig", "LLMEngine", "RequestOutput", "SamplingParams"]


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
