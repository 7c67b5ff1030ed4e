"""Backends by the word in `WorkerConfig.backend`. Named by import string: an unused one is never imported."""

from __future__ import annotations

from typing import cast

from headrace.config.import_string import load_by_name
from headrace.config.resolved import HeadraceConfig
from headrace.errors import ConfigError
from headrace.model.ops import EXACT, Backend, Precision

BACKENDS = {
    "native": "headrace.backends.native.backend:NativeBackend",
    "numpy": "headrace.backends.numpy.backend:NumpyBackend",
}


def make_backend(word: str, num_threads: int, precision: Precision = EXACT) -> Backend:
    """Raises `ConfigError` for a word that is not in the table."""
    if word not in BACKENDS:
        raise ConfigError(f"{word!r} is not one of {', '.join(BACKENDS)}", flag="--backend")
    return cast(Backend, load_by_name(BACKENDS[word])(num_threads, precision))


def precision_of(config: HeadraceConfig) -> Precision:
    model = config.model
    return Precision(model.dtype, model.quantization, model.activation_quantization, config.cache.kv_cache_dtype)
