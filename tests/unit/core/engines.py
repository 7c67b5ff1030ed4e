"""Engine cores over the hash worker, and what tests ask of them."""

from __future__ import annotations

from headrace.config.limits import Limits
from headrace.config.model_facts import ModelFacts, RopeFacts
from headrace.config.resolve import SCHEDULER, UNIPROC_EXECUTOR
from headrace.config.resolved import (
    CacheConfig,
    HeadraceConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
    WorkerConfig,
)
from headrace.contracts.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from headrace.contracts.sampling_params import SamplingParams
from headrace.core.engine_core import EngineCore
from headrace.simulation.hash_model import VOCAB_SIZE, HashExecutor

FACTS = ModelFacts(
    architecture="llama",
    checkpoint_format="safetensors",
    path="",
    vocab_size=VOCAB_SIZE,
    hidden_size=1,
    intermediate_size=1,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=1,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    rope=RopeFacts(10000.0, 1),
    tie_word_embeddings=True,
    eos_token_ids=(),
)


def make_config(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_num_seqs: int = 8,
    budget: int = 32,
    caching: bool = True,
    max_model_len: int = 512,
    eos_token_ids: tuple[int, ...] = (),
) -> HeadraceConfig:
    facts = FACTS if not eos_token_ids else type(FACTS)(**{**_fields(FACTS), "eos_token_ids": eos_token_ids})
    return HeadraceConfig(
        model=ModelConfig(
            facts=facts,
            tokenizer="",
            served_model_names=("m",),
            load_format="dummy",
            seed=0,
            max_model_len=max_model_len,
        ),
        cache=CacheConfig(
            block_size=block_size,
            enable_prefix_caching=caching,
            kv_cache_memory=None,
            num_kv_blocks_override=num_blocks,
        ),
        scheduler=SchedulerConfig(
            scheduler=SCHEDULER,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
        ),
        worker=WorkerConfig(backend="numpy", num_threads=1, executor=UNIPROC_EXECUTOR),
        server=ServerConfig(
            host="127.0.0.1",
            port=0,
            shutdown_timeout=None,
            ipc_transport="unix",
            health_timeout=60.0,
            log_level="info",
        ),
        limits=Limits(vocab_size=VOCAB_SIZE, max_model_len=max_model_len),
    )


def _fields(struct: ModelFacts) -> dict[str, object]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


class Engine:
    """An engine core with its hash worker; collects every output by request."""

    def __init__(self, **settings: object) -> None:
        config = make_config(**settings)
        self.executor = HashExecutor(config.cache.num_kv_blocks_override, config.cache.block_size)
        self.core = EngineCore(config, self.executor)
        self.core.start()
        self.outputs: dict[str, list[EngineCoreOutput]] = {}

    def add(
        self, request_id: str, prompt: list[int], max_tokens: int, *, output: list[int] | None = None, **params: object
    ) -> None:
        salt = params.pop("cache_salt", None)
        sampling = SamplingParams(max_tokens=max_tokens, seed=0, **params)
        message = EngineCoreRequest(request_id, 0, list(prompt), output or [], sampling, 0.0, 0, salt)
        self.outputs[request_id] = []
        self.core.add_request(self.core.prepare(message))

    def step(self) -> None:
        for packed in (self.core.take_pending(), self.core.step()):
            for outputs in packed.values():
                for output in outputs.outputs:
                    self.outputs[output.request_id].append(output)

    def run(self, max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("the engine does not come to rest")

    def tokens(self, request_id: str) -> list[int]:
        """The request's output tokens; checks that they came in order and without a gap."""
        tokens: list[int] = []
        for output in self.outputs[request_id]:
            assert output.first_index == len(tokens)
            tokens += output.new_token_ids
        return tokens

    def finish_reason(self, request_id: str) -> FinishReason | None:
        reasons = [o.finish_reason for o in self.outputs[request_id] if o.finish_reason is not None]
        assert len(reasons) <= 1
        return reasons[0] if reasons else None

    def check_at_rest(self) -> None:
        """Nothing is left of any request, here or in the worker."""
        scheduler = self.core.scheduler
        pool = scheduler.kv.pool
        assert scheduler.stats().num_running_reqs == scheduler.stats().num_waiting_reqs == 0
        assert scheduler.num_unfinished == 0
        assert not any(scheduler._wheel)
        assert pool.num_free == pool.num_blocks
        assert pool.usage == 0.0
        assert not self.executor.rows
