"""`EngineCore`: requests in, tokens out, one step at a time. Knows no process and no socket."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.config.import_string import load_by_name
from headrace.config.resolved import HeadraceConfig
from headrace.contracts.engine import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    UtilityCall,
    UtilityOutput,
)
from headrace.core.executor.executor import Executor
from headrace.core.request import Request
from headrace.core.sched.admission import check_tokens
from headrace.core.sched.scheduler import Outputs, Scheduler
from headrace.errors import RequestError


class Refusal(NamedTuple):
    """A request that does not get as far as the scheduler, and its answer."""

    client_index: int
    output: EngineCoreOutput


class EngineCore:
    """The scheduler and the workers under it. One thread calls everything but `prepare`."""

    def __init__(
        self, config: HeadraceConfig, executor: Executor, *, engine_index: int = 0, incarnation: int = 0
    ) -> None:
        """Loads nothing: `start` does. `incarnation` tells this engine core from one that died before it."""
        self.engine_index = engine_index
        self.incarnation = incarnation
        self.executor = executor
        self.num_kv_blocks = 0
        self.scheduler: Scheduler
        self._config = config
        self._utilities: dict[str, Callable[[], bool]] = {"reset_prefix_cache": self.reset_prefix_cache}
        self._pending: Outputs = {}  # outputs of requests that ended outside a step

    def start(self) -> None:
        """Allocate the KV cache and set up the scheduler. The executor has loaded its model. Raises `StartupError`."""
        config = self._config
        self.num_kv_blocks = self.executor.initialize_kv_cache()
        scheduler_class: Any = load_by_name(config.scheduler.scheduler)
        self.scheduler = scheduler_class(config.scheduler, config.cache, self.num_kv_blocks)

    # ---- the step ----------------------------------------------------------------------------------------------------

    def step(self, take_messages: Callable[[], None] = lambda: None) -> dict[int, EngineCoreOutputs]:
        """One step of the engine; the outputs by client. `take_messages` is called while its result is not yet taken
        in, so that an abort that came during the forward pass has its effect in this very step."""
        scheduler_output = self.scheduler.schedule()
        self.executor.execute_model(scheduler_output).result()
        runner_output = self.executor.sample_tokens().result()
        take_messages()
        return self._pack(self.scheduler.update(scheduler_output, runner_output))

    @property
    def has_work(self) -> bool:
        """Is there something to compute or to report?"""
        return bool(self._pending) or self.scheduler.has_work

    # ---- messages ----------------------------------------------------------------------------------------------------

    def prepare(self, message: EngineCoreRequest) -> Request | Refusal:
        """Make the scheduler's record of a request, block hashes included, or refuse it. Thread-safe: the input thread
        does this, so that the step loop does nothing that grows with a prompt."""
        cache = self._config.cache
        try:
            check_tokens(message, self._config.limits)
        except RequestError as error:
            return refuse(message.request_id, message.client_index, error)
        return Request(
            message,
            eos_token_ids=self._config.model.facts.eos_token_ids,
            max_model_len=self._config.model.max_model_len,
            block_size=cache.block_size if cache.enable_prefix_caching else None,
        )

    def add_request(self, request: Request | Refusal) -> None:
        """Queue what `prepare` has made of a request; one that can never run is answered with its error."""
        if isinstance(request, Request):
            try:
                self.scheduler.add_request(request)
                return
            except RequestError as error:
                request = refuse(request.request_id, request.client_index, error)
        self._pending.setdefault(request.client_index, []).append(request.output)

    def abort_requests(self, request_ids: list[str]) -> None:
        for client_index, outputs in self.scheduler.abort_requests(request_ids).items():
            self._pending.setdefault(client_index, []).extend(outputs)

    def call_utility(self, call: UtilityCall) -> EngineCoreOutputs:
        """Call a method out of the closed table. A failure is the caller's to hear, not the engine's to die of."""
        method = self._utilities.get(call.method)
        if method is None:
            answer = UtilityOutput(call.call_id, failure_message=f"no such method: {call.method[:64]}")
        else:
            try:
                answer = UtilityOutput(call.call_id, result=method())
            except Exception as error:
                answer = UtilityOutput(call.call_id, failure_message=f"{call.method} failed: {type(error).__name__}")
        return EngineCoreOutputs(self.engine_index, self.incarnation, [], None, time.time(), answer)

    def reset_prefix_cache(self) -> bool:
        return self.scheduler.reset_prefix_cache()

    # ---- out ---------------------------------------------------------------------------------------------------------

    def take_pending(self) -> dict[int, EngineCoreOutputs]:
        """What ended outside a step since the last call, by client."""
        return self._pack({})

    def heartbeat(self) -> EngineCoreOutputs:
        """A message without outputs, for steps that have none: prompts are being computed, and all is well."""
        return EngineCoreOutputs(self.engine_index, self.incarnation, [], self.scheduler.stats(), time.time())

    def _pack(self, outputs: Outputs) -> dict[int, EngineCoreOutputs]:
        pending, self._pending = self._pending, {}
        for client_index, ended in pending.items():
            outputs.setdefault(client_index, []).extend(ended)
        if not outputs:
            return {}
        stats, now = self.scheduler.stats(), time.time()
        return {
            client_index: EngineCoreOutputs(self.engine_index, self.incarnation, client_outputs, stats, now)
            for client_index, client_outputs in outputs.items()
        }


def refuse(request_id: str, client_index: int, error: RequestError) -> Refusal:
    """`first_index` 0: a refusal is about the request, not about a place in its output."""
    output = EngineCoreOutput(request_id, 0, [], FinishReason.ERROR, error_message=error.message, error_code=error.code)
    return Refusal(client_index, output)
