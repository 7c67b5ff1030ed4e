"""`resolve()`: from what the user typed and what the model's files say to what the processes get.

Every rule that involves more than one setting is here, and only here.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from headrace.config.address import api_keys, check_address
from headrace.config.cpu import usable_cores
from headrace.config.engine_config import EngineConfig
from headrace.config.limits import Limits
from headrace.config.model_facts import ModelFacts
from headrace.config.model_files import is_hub_name, locate_model, read_model_facts
from headrace.config.resolved import (
    CacheConfig,
    HeadraceConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
    WorkerConfig,
)
from headrace.config.sampling_defaults import sampling_defaults
from headrace.errors import ConfigError

SCHEDULER = "headrace.core.sched.scheduler:Scheduler"
NATIVE_KERNELS = "headrace.backends.native._native"  # built where there is a C++ compiler
UNIPROC_EXECUTOR = "headrace.core.executor.uniproc:UniProcExecutor"

# By the words of --kv-cache-dtype, but for auto.
KV_CACHE_DTYPES = {"bfloat16": "bfloat16", "int8": "int8", "fp8": "fp8", "fp8_e4m3": "fp8"}

# Small on purpose: on a CPU a step's duration grows with its tokens, and every stream waits for the step.
DEFAULT_BATCHED_TOKENS = {"native": 512, "numpy": 64}


def resolve(config: EngineConfig, path: Path | None = None) -> HeadraceConfig:
    """Decide every default and refuse combinations that cannot work. `path` is the model's, where that is known
    already; else a model on the Hugging Face hub is downloaded here.

    Raises `ConfigError` naming the flag, `ModelFormatError` or `UnsupportedModelError` for the model's files.
    """
    path = path or locate_model(config.model, config.revision)
    facts = read_model_facts(path)
    backend = _backend(config)
    dtype = _dtype(config, facts, backend)
    max_model_len = _max_model_len(config, facts)
    limits = Limits(
        vocab_size=facts.vocab_size,
        max_model_len=max_model_len,
        max_active_requests=config.max_num_seqs + config.max_queued_requests,
    )
    return HeadraceConfig(
        model=ModelConfig(
            facts=facts,
            tokenizer=config.tokenizer or str(path),
            served_model_names=config.served_model_name or (_model_name(config.model, path),),
            load_format=config.load_format,
            seed=config.seed,
            max_model_len=max_model_len,
            dtype=dtype,
            quantization=_quantization(config, backend),
            activation_quantization=config.activation_quantization,
            sampling_defaults=sampling_defaults(config, path, limits),
            chat_template=_chat_template(config),
        ),
        cache=CacheConfig(
            block_size=config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            kv_cache_memory=config.kv_cache_memory,
            num_kv_blocks_override=config.num_kv_blocks_override,
            verify_prefix_hits=config.verify_prefix_hits,
            kv_cache_dtype=_kv_cache_dtype(config, dtype, backend),
        ),
        scheduler=SchedulerConfig(
            scheduler=SCHEDULER,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=_max_num_batched_tokens(config, backend),
            policy=config.scheduling_policy,
            check_invariants=config.check_invariants,
            prefill_tokens_per_request=config.prefill_tokens_per_request,
        ),
        worker=WorkerConfig(
            backend=backend, num_threads=config.num_threads or usable_cores(), executor=UNIPROC_EXECUTOR
        ),
        server=_server(config),
        limits=limits,
    )


def _chat_template(config: EngineConfig) -> str | None:
    """The template's source: from a file, unless it is one itself. Whoever uses it finds out whether it compiles."""
    given = config.chat_template
    if given is None or "{{" in given or "{%" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{given}: it is not UTF-8", flag="--chat-template") from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise ConfigError(f"{given}: cannot be read: {error}", flag="--chat-template") from None


def _backend(config: EngineConfig) -> str:
    if config.backend != "auto":
        return config.backend
    return "native" if importlib.util.find_spec(NATIVE_KERNELS) else "numpy"


def _dtype(config: EngineConfig, facts: ModelFacts, backend: str) -> str:
    if backend == "numpy":
        if config.dtype == "bfloat16":
            raise ConfigError("the numpy backend computes in float32 alone", flag="--dtype")
        return "float32"
    if config.dtype == "auto":
        return "float32" if facts.has_float32_weights else "bfloat16"
    return config.dtype


def _quantization(config: EngineConfig, backend: str) -> str:
    if backend == "numpy" and config.quantization != "none":
        raise ConfigError("the numpy backend computes in float32 alone", flag="--quantization")
    return config.quantization


def _kv_cache_dtype(config: EngineConfig, dtype: str, backend: str) -> str:
    if config.kv_cache_dtype == "auto":
        return dtype
    kept = KV_CACHE_DTYPES.get(config.kv_cache_dtype)
    if kept is None:
        raise ConfigError(
            f"{config.kv_cache_dtype!r} is not one of auto, {', '.join(KV_CACHE_DTYPES)}", flag="--kv-cache-dtype"
        )
    if backend == "numpy" and kept == "bfloat16":
        raise ConfigError(
            "the numpy backend keeps its KV cache in float32, int8 or fp8, not in bfloat16", flag="--kv-cache-dtype"
        )
    return kept


def _max_model_len(config: EngineConfig, facts: ModelFacts) -> int:
    if config.max_model_len is None:
        return facts.max_position_embeddings
    if config.max_model_len > facts.max_position_embeddings:
        raise ConfigError(
            f"{config.max_model_len} is more than the {facts.max_position_embeddings} positions that the model was "
            "made for",
            flag="--max-model-len",
        )
    return config.max_model_len


def _max_num_batched_tokens(config: EngineConfig, backend: str) -> int:
    """The step's token budget. At least `max_num_seqs`, so that every running request can decode in every step."""
    if config.max_num_batched_tokens is None:
        return max(DEFAULT_BATCHED_TOKENS[backend], config.max_num_seqs)
    if config.max_num_batched_tokens < config.max_num_seqs:
        raise ConfigError(
            f"{config.max_num_batched_tokens} is less than --max-num-seqs ({config.max_num_seqs}): each running "
            "request needs room for one token in every step",
            flag="--max-num-batched-tokens",
        )
    return config.max_num_batched_tokens


def _server(config: EngineConfig) -> ServerConfig:
    check_address(config)
    return ServerConfig(
        host=config.host,
        port=config.port,
        client_timeout=config.client_timeout,
        shutdown_timeout=config.shutdown_timeout,
        ipc_transport=config.ipc_transport,
        health_timeout=config.health_timeout,
        output_chunk_size=config.output_chunk_size,
        log_level=config.log_level,
        log_format=config.log_format,
        log_requests=config.enable_log_requests,
        api_key_digests=tuple(hashlib.sha256(key.encode()).digest() for key in api_keys(config)),
    )


def _model_name(name: str, path: Path) -> str:
    if is_hub_name(name):
        return name
    return path.stem if path.suffix == ".gguf" else path.name
