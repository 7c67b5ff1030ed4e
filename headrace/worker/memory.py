"""The memory plan: what weights, steps and KV cache take. Arithmetic on facts and settings; nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.config.cpu import available_memory
from headrace.config.resolved import HeadraceConfig
from headrace.errors import ConfigError
from headrace.model.loader.checkpoint import open_checkpoint
from headrace.model.loader.loader import stored_types
from headrace.model.ops import AttentionSpec, Backend, Memory, StepShape
from headrace.model.registry import find_architecture
from headrace.model.weights import MatrixSpec, RopeSpec, VectorSpec, WeightSpec
from headrace.worker.backends import make_backend, precision_of

MAX_DEFAULT_KV_BYTES = 4 * 2**30


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes in bytes."""

    backend: str  # what computes, for the operator to read
    weight_bytes: int
    step_bytes: int
    kv_block_bytes: int
    num_kv_blocks: int
    block_size: int
    max_model_len: int

    @property
    def num_kv_tokens(self) -> int:
        return self.num_kv_blocks * self.block_size

    @property
    def num_full_requests(self) -> int:
        """Requests of `max_model_len` tokens that fit at the same time."""
        return self.num_kv_blocks // blocks_for(self.max_model_len, self.block_size)

    def render(self) -> str:
        kv_bytes = self.num_kv_blocks * self.kv_block_bytes
        total = self.weight_bytes + self.step_bytes + kv_bytes
        requests = "request" if self.num_full_requests == 1 else "requests"
        rows = [
            ("weights", self.weight_bytes, ""),
            ("activations", self.step_bytes, "largest step"),
            ("KV cache", kv_bytes, f"{self.num_kv_blocks} blocks of {self.block_size} = {self.num_kv_tokens} tokens"),
            ("total", total, f"{self.num_full_requests} {requests} of {self.max_model_len} tokens at once"),
        ]
        sizes = [f"{name:<12}{_mebibytes(size):>12}  {note}".rstrip() for name, size, note in rows]
        return "\n".join([f"{'backend':<12}{self.backend}", *sizes])


def plan_memory(config: HeadraceConfig) -> MemoryPlan:
    """The plan as it would come out if the model were loaded now. Raises `ConfigError` if it does not fit."""
    model = config.model
    backend = make_backend(config.worker.backend, 1, precision_of(config))
    try:
        checkpoint = open_checkpoint(model.facts, model.load_format, model.seed)
        return make_plan(config, backend, stored_types(model.facts, checkpoint), weights_loaded=False)
    finally:
        backend.close()


def make_plan(
    config: HeadraceConfig, backend: Backend, stored: Mapping[str, str], *, weights_loaded: bool
) -> MemoryPlan:
    """`stored`: the loader's `stored_types`. With the weights loaded, what the machine has left is measured without
    them. Raises `ConfigError`."""
    facts = config.model.facts
    architecture = find_architecture(facts.architecture)
    layers = architecture.attention_specs(facts)
    memory = backend.memory
    weight_bytes = sum(
        _weight_bytes(memory, spec, stored, config.model.max_model_len) for spec in architecture.weight_specs(facts)
    )
    step_bytes = memory.step_bytes(largest_step(config, layers))
    block_bytes = memory.kv_block_bytes(layers, config.cache.block_size)
    left = max(0, available_memory() - step_bytes - (0 if weights_loaded else weight_bytes))
    return MemoryPlan(
        backend=_describe(config, backend),
        weight_bytes=weight_bytes,
        step_bytes=step_bytes,
        kv_block_bytes=block_bytes,
        num_kv_blocks=_num_kv_blocks(config, block_bytes, left),
        block_size=config.cache.block_size,
        max_model_len=config.model.max_model_len,
    )


def largest_step(config: HeadraceConfig, layers: Sequence[AttentionSpec]) -> StepShape:
    facts = config.model.facts
    return StepShape(
        max_num_tokens=config.scheduler.max_num_batched_tokens,
        max_num_samples=config.scheduler.max_num_seqs + config.scheduler.max_prompt_logprobs,
        max_model_len=config.model.max_model_len,
        num_threads=config.worker.num_threads,
        hidden_size=facts.hidden_size,
        intermediate_size=facts.intermediate_size,
        vocab_size=facts.vocab_size,
        attention=max(layers, key=lambda layer: layer.num_heads * layer.head_dim),
    )


def _describe(config: HeadraceConfig, backend: Backend) -> str:
    instruction_set = f" ({backend.instruction_set})" if backend.instruction_set else ""
    threads = "1 thread" if config.worker.num_threads == 1 else f"{config.worker.num_threads} threads"
    few_bits = "" if config.model.quantization == "none" else f", matrices {config.model.quantization}"
    kv_cache_dtype = config.cache.kv_cache_dtype
    cache = "" if kv_cache_dtype == config.model.dtype else f", KV cache {kv_cache_dtype}"
    return f"{config.worker.backend}{instruction_set}, {config.model.dtype}{few_bits}{cache}, {threads}"


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def _num_kv_blocks(config: HeadraceConfig, block_bytes: int, bytes_left: int) -> int:
    cache = config.cache
    for_one = blocks_for(config.model.max_model_len, cache.block_size)
    if cache.num_kv_blocks_override is not None:
        return cache.num_kv_blocks_override  # as small as one likes: requests that can never fit are refused
    given = cache.kv_cache_memory
    budget = given if given is not None else min(MAX_DEFAULT_KV_BYTES, bytes_left // 2)
    num_blocks = min(budget // block_bytes, for_one * config.scheduler.max_num_seqs)
    if num_blocks < for_one:
        raise ConfigError(
            f"{_mebibytes(budget)} of KV cache cannot hold one request of {config.model.max_model_len} tokens, which "
            f"needs {_mebibytes(for_one * block_bytes)}; raise it, or lower --max-model-len",
            flag="--kv-cache-memory",
        )
    return num_blocks


def _weight_bytes(memory: Memory, spec: WeightSpec, stored: Mapping[str, str], num_positions: int) -> int:
    match spec:
        case MatrixSpec():
            biases = sum(memory.vector_bytes(bias.shape[0]) for bias in spec.biases)
            parts = [(part.shape[0], stored[part.name]) for part in spec.parts]
            return memory.matrix_bytes(parts, spec.shape[1], is_gated=spec.is_gated) + biases
        case VectorSpec():
            return memory.vector_bytes(spec.size)
        case RopeSpec():
            return memory.rope_bytes(spec.facts.dim, num_positions)


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
