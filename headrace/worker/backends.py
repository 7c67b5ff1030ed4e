"""Backends by the word in `WorkerConfig.backend`. Named by import string: an unused one is never imported."""

from __future__ import annotations

from typing import cast

from headrace.config.import_string import load_by_name
from headrace.errors import ConfigError
from headrace.model.ops import Backend

BACKENDS = {
    "native": "headrace.backends.native.backend:NativeBackend",
    "numpy": "headrace.backends.numpy.backend:NumpyBackend",
}


def make_backend(
    word: str,
    num_threads: int,
    dtype: str = "float32",
    quantization: str = "none",
    kv_cache_dtype: str | None = None,
) -> Backend:
    """`kv_cache_dtype` None: the same as `dtype`. Raises `ConfigError` for a word that is not in the table."""
    if word not in BACKENDS:
        raise ConfigError(f"{word!r} is not one of {', '.join(BACKENDS)}", flag="--backend")
    return cast(Backend, load_by_name(BACKENDS[word])(num_threads, dtype, quantization, kv_cache_dtype))
