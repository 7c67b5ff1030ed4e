"""A scheduler with a worker that needs no model: it samples what the test says. For tests of single rules."""

from __future__ import annotations

from headrace.config.resolved import CacheConfig, SchedulerConfig
from headrace.contracts.engine import EngineCoreEventType, EngineCoreOutput, EngineCoreRequest
from headrace.contracts.model_runner import ModelRunnerOutput
from headrace.contracts.sampling_params import SamplingParams
from headrace.contracts.scheduler import SchedulerOutput
from headrace.core.request import Request
from headrace.core.sched.scheduler import Scheduler

QUEUED, SCHEDULED, PREEMPTED = EngineCoreEventType
EOS, PLAIN = 2, 7  # an end-of-sequence id, and what is sampled unless a test says otherwise


def make_request(
    request_id: str = "a",
    prompt: list[int] | int = 4,
    max_tokens: int | None = 8,
    *,
    output: list[int] | None = None,
    priority: int = 0,
    client_index: int = 0,
    cache_salt: str | None = None,
    block_size: int | None = 4,
    max_model_len: int = 512,
    **params: object,
) -> Request:
    """`prompt` as a number: that many tokens, that no request of another name has."""
    if isinstance(prompt, int):
        first = 1000 * sum(256**i * byte for i, byte in enumerate(request_id.encode()[:2]))
        prompt = list(range(first, first + prompt))
    sampling = SamplingParams(max_tokens=max_tokens, seed=0, **params)
    message = EngineCoreRequest(request_id, client_index, prompt, output or [], sampling, 0.0, priority, cache_salt)
    return Request(message, eos_token_ids=(EOS,), max_model_len=max_model_len, block_size=block_size)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Steps:
    """Runs a scheduler step by step, and keeps what it said."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 8,
        budget: int = 64,
        caching: bool = True,
        verify: bool = False,
        policy: str = "fcfs",
        patience: int = 512,
        max_passes: int = 8,
        max_prompt_logprobs: int = 64,
        prefill_tokens_per_request: int = 4,
        min_prefill_limit: int = 64,
    ) -> None:
        cache = CacheConfig(
            block_size=block_size,
            enable_prefix_caching=caching,
            kv_cache_memory=None,
            num_kv_blocks_override=None,
            verify_prefix_hits=verify,
        )
        config = SchedulerConfig(
            scheduler="",
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            policy=policy,
            patience=patience,
            max_passes=max_passes,
            max_prompt_logprobs=max_prompt_logprobs,
            prefill_tokens_per_request=prefill_tokens_per_request,
            min_prefill_limit=min_prefill_limit,
        )
        self.clock = Clock()
        self.scheduler = Scheduler(config, cache, num_blocks, clock=self.clock)
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[EngineCoreOutput]] = {}
        self._block_size = block_size if caching else None

    def add(self, request_id: str, prompt: list[int] | int = 4, max_tokens: int = 8, **more: object) -> Request:
        request = make_request(request_id, prompt, max_tokens, block_size=self._block_size, **more)
        self.requests[request_id] = request
        self.scheduler.add_request(request)
        return request

    def schedule(self) -> SchedulerOutput:
        step = self.scheduler.schedule()
        assert step.total_num_scheduled_tokens == sum(step.num_scheduled_tokens.values())
        return step

    def sampled(self, step: SchedulerOutput, **tokens: int) -> ModelRunnerOutput:
        """What a worker would answer."""
        ready = [
            request_id
            for request_id, num_tokens in step.num_scheduled_tokens.items()
            if self.requests[request_id].num_computed_tokens + num_tokens == self.requests[request_id].num_tokens
        ]
        return ModelRunnerOutput(ready, [tokens.get(request_id, PLAIN) for request_id in ready])

    def step(self, **tokens: int) -> SchedulerOutput:
        """One step; `tokens` says what a request samples."""
        step = self.schedule()
        for outputs in self.scheduler.update(step, self.sampled(step, **tokens)).values():
            for output in outputs:
                self.outputs.setdefault(output.request_id, []).append(output)
        self.scheduler.check()
        return step

    def run(self, max_steps: int = 1000) -> list[SchedulerOutput]:
        """Step until nothing is left."""
        steps = []
        while self.scheduler.has_work:
            assert len(steps) < max_steps, "the scheduler does not come to rest"
            steps.append(self.step())
        return steps

    def events(self, request_id: str) -> list[tuple[EngineCoreEventType, float]]:
        return [(e.type, e.timestamp) for output in self.outputs[request_id] for e in output.events or []]


def started(step: SchedulerOutput) -> list[str]:
    return [new.req_id for new in step.scheduled_new_reqs]
