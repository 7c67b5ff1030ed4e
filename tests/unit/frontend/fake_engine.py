"""An engine core in memory: no model, no process. It answers with tokens that the test has chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from headrace.contracts.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from headrace.contracts.lifecycle import EngineCoreReadyResponse
from headrace.contracts.model_runner import TokenLogprobs
from headrace.contracts.stats import SchedulerStats
from headrace.errors import EngineDeadError

Script = Callable[[EngineCoreRequest], Sequence[int]]
READY = EngineCoreReadyResponse(engine_index=0, incarnation=1, num_kv_blocks=64, block_size=16, max_model_len=256)


def logprobs_of(token: int, num_top: int) -> TokenLogprobs:
    """The token has the probability 1/2; before it come, less and less probable, the tokens 100, 101, ..."""
    top = np.log(0.9 / 2.0 ** np.arange(num_top)).astype("<f4")
    return TokenLogprobs(float(np.log(0.5)), 2, np.arange(100, 100 + num_top, dtype="<i4").tobytes(), top.tobytes())


class FakeEngine:
    """An `AsyncEngineCoreClient`. Each request gets its script's tokens, one in each message, cut at `max_tokens`; a
    script that is shorter ends with the reason stop. A request that meets `holds` gets nothing until the test sends
    it."""

    def __init__(self, script: Script = lambda request: (), *, is_ready: bool = True) -> None:
        self.script = script
        self.holds: Callable[[EngineCoreRequest], bool] = lambda request: False
        self.requests: dict[str, EngineCoreRequest] = {}  # under way
        self.seen: list[EngineCoreRequest] = []
        self.aborted: list[str] = []
        self.pace = 0  # turns of the event loop before each message: enough of them, and no reader falls behind
        self.num_waiting = 0  # calls that had to wait for the engine to be ready
        self._messages: asyncio.Queue[EngineCoreOutputs | EngineDeadError] = asyncio.Queue()
        self._ready = asyncio.Event()
        self._changed = asyncio.Event()
        if is_ready:
            self._ready.set()

    # ---- what the front end calls

    @property
    def ready(self) -> EngineCoreReadyResponse | None:
        return READY if self._ready.is_set() else None

    async def wait_ready(self) -> EngineCoreReadyResponse:
        self.num_waiting += not self._ready.is_set()
        self._notify()
        await self._ready.wait()
        return READY

    def add_request(self, request: EngineCoreRequest) -> None:
        self.requests[request.request_id] = request
        self.seen.append(request)
        self._notify()
        if not self.holds(request):
            self.answer(request)

    def abort_requests(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.aborted.append(request_id)
            self.requests.pop(request_id, None)
        self._notify()
        self.send()

    async def get_output(self) -> EngineCoreOutputs:
        message = await self._messages.get()
        for _ in range(self.pace):
            await asyncio.sleep(0)
        if isinstance(message, EngineDeadError):
            raise message
        return message

    async def call_utility(self, method: str) -> bool | int | str | None:
        return None

    def shutdown(self) -> None:
        pass

    # ---- what the test calls

    def become_ready(self) -> None:
        self._ready.set()

    def answer(self, request: EngineCoreRequest) -> None:
        max_tokens = request.sampling_params.max_tokens
        assert max_tokens is not None
        tokens = list(self.script(request))
        reason = FinishReason.LENGTH if len(tokens) >= max_tokens else FinishReason.STOP
        tokens = tokens[:max_tokens]
        for index, token in enumerate(tokens):
            is_last = index == len(tokens) - 1
            num_top, num_top_of_prompt = request.sampling_params.logprobs, request.sampling_params.prompt_logprobs
            output = EngineCoreOutput(request.request_id, index, [token], reason if is_last else None)
            if num_top is not None:
                output.new_logprobs = [logprobs_of(token, num_top)]
            if index == 0 and num_top_of_prompt is not None:
                output.prompt_logprobs = [
                    logprobs_of(known, num_top_of_prompt) for known in request.prompt_token_ids[1:]
                ]
            self.send(output)

    def send(self, *outputs: EngineCoreOutput) -> None:
        for output in outputs:
            if output.finish_reason is not None:
                self.requests.pop(output.request_id, None)
        stats = SchedulerStats(num_running_reqs=len(self.requests))
        self._messages.put_nowait(EngineCoreOutputs(0, 1, list(outputs), stats))

    def die(self, message: str = "The engine core has died.") -> None:
        self._messages.put_nowait(EngineDeadError(message))

    async def until(self, condition: Callable[[FakeEngine], bool]) -> None:
        """Wait for something that a call of the front end brings about."""
        while not condition(self):
            self._changed.clear()
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
