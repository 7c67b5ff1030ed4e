"""One life of the engine core: the real `EngineCore` over the hash model, with the busy loop as events of a clock.

What `core/engine_core_proc.py` does with threads and sockets happens here in the same order: messages are decoded and
prepared when they arrive, taken before a step and once more while its result is not yet taken in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

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
from headrace.contracts.codec import abort_codec, outputs_codec, request_codec, utility_codec
from headrace.contracts.engine import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType, UtilityCall
from headrace.core.engine_core import EngineCore, Refusal
from headrace.core.request import Request
from headrace.core.sched.scheduler import Scheduler
from headrace.core.sched.waiting_queue import WaitingQueue
from headrace.simulation.answer import limits_of
from headrace.simulation.clock import Clock
from headrace.simulation.hash_model import HashExecutor
from headrace.simulation.liveness import LivenessWatch
from headrace.simulation.scenario import VOCAB_SIZE, Scenario
from headrace.simulation.violation import Violation

MAX_STEPS = 20_000  # far more than any scenario needs

REQUESTS, ABORTS, UTILITIES, OUTPUTS = request_codec(), abort_codec(), utility_codec(), outputs_codec()


class SimulatedEngine:
    def __init__(
        self,
        scenario: Scenario,
        clock: Clock,
        counters: Counter[str],
        *,
        incarnation: int,
        salt_of: Callable[[str], str | None],
        send: Callable[[int, bytes], None],
    ) -> None:
        """`send` takes a client index and encoded outputs."""
        config = config_of(scenario)
        self.incarnation = incarnation
        self._is_lost = False
        self.executor = HashExecutor(
            scenario.num_blocks,
            scenario.block_size,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=scenario.eos_token_ids,
            salt_of=salt_of,
            max_prompt_logprobs=scenario.max_prompt_logprobs,
        )
        self.core = EngineCore(config, self.executor, incarnation=incarnation)
        self.core.start()
        self.core.scheduler = Scheduler(config.scheduler, config.cache, scenario.num_blocks, clock=clock.seconds)
        self.watch = LivenessWatch(scenario, counters, clock.seconds)
        self._clock = clock
        self._counters = counters
        self._send_bytes = send
        self._times = Random(f"{scenario.seed} {incarnation} times")
        self._max_step = scenario.max_step
        self._inbox: list[tuple[EngineCoreRequest, Request | Refusal] | list[str] | UtilityCall] = []
        self._is_awake = False  # a tick is planned or under way
        self._is_computing = False

    def lose(self) -> None:
        """The process dies, whatever it does now."""
        self._is_lost = True

    def is_lost(self) -> bool:
        return self._is_lost

    # ---- the input thread --------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        kind, payload = data[:1], data[1:]
        if kind == EngineCoreRequestType.ADD:
            message = REQUESTS.decode(payload)
            self._inbox.append((message, self.core.prepare(message)))
        elif kind == EngineCoreRequestType.ABORT:
            self._inbox.append(ABORTS.decode(payload))
        else:
            self._inbox.append(UTILITIES.decode(payload))
        self._wake()

    # ---- the busy loop -----------------------------------------------------------------------------------------------

    def _wake(self, *, pause: int = 0) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._clock.after(pause, self._tick)

    def _tick(self) -> None:
        if self.is_lost():
            return
        core = self.core
        self._take_messages()
        self._send(core.take_pending())
        if core.scheduler.has_work:
            outputs = core.step(self._while_computing)
            if self.is_lost():
                return  # died with the step: nobody hears of it
            for client_outputs in outputs.values():
                self.watch.computed(client_outputs.outputs)
            self._check()
            self._send(outputs)
        self._is_awake = False
        if core.has_work or self._inbox:
            self._wake(pause=self._times.randint(0, self._max_step) // 2)

    def _while_computing(self) -> None:
        """The forward takes its time, and the world goes on."""
        step = self.executor.steps[-1]
        self._counters["steps"] += 1
        if step.step > MAX_STEPS:
            raise Violation("d", "the engine does not come to rest")
        self.watch.scheduled(step)
        self._clock.advance(self._times.randint(1, self._max_step))
        self._is_computing = True
        if not self.is_lost():
            self._take_messages()
        self._is_computing = False

    def _take_messages(self) -> None:
        inbox, self._inbox = self._inbox, []
        for message in inbox:
            if isinstance(message, tuple):
                self._add(*message)
            elif isinstance(message, list):
                self._abort(message)
            else:
                self._call_utility(message)

    def _add(self, message: EngineCoreRequest, request: Request | Refusal) -> None:
        scheduler = self.core.scheduler
        num_before = scheduler.num_unfinished, scheduler.num_duplicates
        self.core.add_request(request)
        if scheduler.num_unfinished > num_before[0]:
            self._counters["requests taken by the scheduler"] += 1
            self._counters["requests that came with output"] += bool(message.output_token_ids)
            self.watch.arrived(message)
        elif scheduler.num_duplicates > num_before[1]:
            self._counters["duplicate requests"] += 1
        else:
            self._counters["refusals"] += 1

    def _abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            when = " during the forward" if self._is_computing else ""
            self._counters[f"aborts: {self.watch.state_of(request_id)}{when}"] += 1
        self.core.abort_requests(request_ids)
        for request_id in request_ids:
            self.watch.ended(request_id)

    def _call_utility(self, call: UtilityCall) -> None:
        answer = self.core.call_utility(call)
        if answer.utility_output is None or answer.utility_output.failure_message is not None:
            raise Violation("a", "a utility call failed", str(answer))
        is_done = answer.utility_output.result
        self._counters[f"resets answered {is_done}"] += 1
        if is_done:
            self.executor.forget()  # whoever finds a block all the same goes on with other tokens
        self._send_bytes(call.client_index, OUTPUTS.encode(answer))

    def _send(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        for client_index, client_outputs in outputs.items():
            self._send_bytes(client_index, OUTPUTS.encode(client_outputs))

    # ---- the invariants ----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self.core.scheduler.check()
        stats = self.core.scheduler.stats()
        gauges = (stats.num_running_reqs, stats.num_waiting_reqs, stats.num_preemptions, stats.longest_wait)
        expected = self.watch.expected_gauges()
        if gauges != expected:
            raise Violation("e", "the gauges are not what goes on", f"{gauges} and {expected}")
        used = {block_id for req_id in self.watch.running() for block_id in self.executor.rows[req_id].block_ids}
        if round(stats.kv_cache_usage * self.executor.num_blocks) != len(used):
            raise Violation("e", "the use of the cache is not what the worker's block tables have")

    def check_at_rest(self) -> None:
        """Nothing is left of any request, here or in the worker."""
        scheduler, pool = self.core.scheduler, self.core.scheduler.kv.pool
        self._check()
        self.watch.check_at_rest()
        stats = scheduler.stats()
        self._counters["tokens found in the prefix cache"] += stats.prefix_cache_hits
        if stats.num_running_reqs or stats.num_waiting_reqs or stats.kv_cache_usage or stats.longest_wait:
            raise Violation("e", "a gauge is not zero at rest", str(stats))
        if pool.num_free != pool.num_blocks:
            raise Violation("e", "blocks are in use at rest")
        if self.executor.rows:
            raise Violation("e", "the worker has rows at rest", ", ".join(self.executor.rows))
        left = [name for name, value in vars(scheduler).items() if holds_something(value)]
        if self.core.has_work or left:
            raise Violation("e", "the scheduler holds something at rest", ", ".join(left))
        if self._inbox or self._is_awake:
            raise Violation("e", "the engine has messages at rest")


def holds_something(value: object) -> bool:
    """A container, or one of containers, that is not empty."""
    if isinstance(value, list | tuple):
        return any(map(holds_something, value)) if value and isinstance(value[0], list | dict | set) else bool(value)
    if isinstance(value, dict | set):
        return bool(value)
    return isinstance(value, WaitingQueue) and len(value) > 0


def config_of(scenario: Scenario) -> HeadraceConfig:
    return HeadraceConfig(
        model=ModelConfig(
            facts=ModelFacts(
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
                max_position_embeddings=scenario.max_model_len,
                rms_norm_eps=1e-5,
                rope=RopeFacts(10000.0, 1),
                tie_word_embeddings=True,
                eos_token_ids=scenario.eos_token_ids,
            ),
            tokenizer="",
            served_model_names=("hash",),
            load_format="dummy",
            seed=0,
            max_model_len=scenario.max_model_len,
        ),
        cache=CacheConfig(
            block_size=scenario.block_size,
            enable_prefix_caching=scenario.caching,
            kv_cache_memory=None,
            num_kv_blocks_override=scenario.num_blocks,
            verify_prefix_hits=scenario.verify_hits,
        ),
        scheduler=SchedulerConfig(
            scheduler=SCHEDULER,
            max_num_seqs=scenario.max_num_seqs,
            max_num_batched_tokens=max(scenario.budget, scenario.max_num_seqs),
            policy=scenario.policy,
            patience=scenario.patience,
            max_passes=scenario.max_passes,
            max_prompt_logprobs=scenario.max_prompt_logprobs,
            prefill_tokens_per_request=scenario.prefill_tokens_per_request,
            min_prefill_limit=scenario.min_prefill_limit,
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
        limits=limits_of(scenario),
    )
