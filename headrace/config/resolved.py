"""What the processes get: the settings with every default decided, in pieces, so that each part sees its own."""

from __future__ import annotations

import msgspec

from headrace.config.limits import Limits
from headrace.config.model_facts import ModelFacts


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    facts: ModelFacts
    tokenizer: str  # a folder with tokenizer.json, or a .gguf file
    served_model_names: tuple[str, ...]  # in the API; answers and metrics have the first
    load_format: str
    seed: int
    max_model_len: int
    sampling_defaults: dict[str, int | float] = {}  # by field of SamplingParams, for requests that do not say
    dtype: str = "float32"  # of matrices: "float32" or "bfloat16"
    quantization: str = "none"  # which matrices are kept in few bits instead: "none", "stored", "int8", "int4"
    activation_quantization: str = "auto"  # what these are multiplied by: "auto", "none", "int8", "int16"
    chat_template: str | None = None  # jinja2 source; None: the model's own

    @property
    def served_model_name(self) -> str:
        return self.served_model_names[0]


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    block_size: int
    enable_prefix_caching: bool
    kv_cache_memory: int | None  # bytes; None: measured after loading
    num_kv_blocks_override: int | None
    verify_prefix_hits: bool = False
    kv_cache_dtype: str = "float32"  # or "bfloat16", "int8", "fp8"


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    scheduler: str  # import string of the class
    max_num_seqs: int
    max_num_batched_tokens: int
    policy: str = "fcfs"
    patience: int = 512  # steps after which a waiting request goes before everybody else
    check_invariants: bool = False  # check all book-keeping whenever the engine is idle
    max_passes: int = 8  # how often a request that does not fit now may be passed
    max_prompt_logprobs: int = 64  # tokens of prompts in a step whose logprobs are computed: a row of logits each
    prefill_tokens_per_request: int = 4  # most tokens of prompts beside decodes, for each request that runs or waits
    min_prefill_limit: int = 64  # and so many in all if that is more; at least 1, or prompts could wait for ever


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    backend: str  # key of backends.BACKENDS
    num_threads: int
    executor: str  # import string of the class


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    shutdown_timeout: float | None
    ipc_transport: str
    health_timeout: float  # seconds
    log_level: str
    log_format: str = "text"
    log_requests: bool = False
    api_key_digests: tuple[bytes, ...] = ()  # SHA-256 of each key; empty: no key is asked for
    client_timeout: float = 60.0  # seconds that a client may be silent when it is its turn
    output_chunk_size: int = 128  # outputs that are taken in before other tasks get their turn


class HeadraceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything, as it travels to the children over their control channels."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    worker: WorkerConfig
    server: ServerConfig
    limits: Limits


class ProcessConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The first thing that a child reads: everything, and which one of its kind it is."""

    config: HeadraceConfig
    run_dir: str  # holds this run's unix sockets
    index: int  # of the API server or the engine core
