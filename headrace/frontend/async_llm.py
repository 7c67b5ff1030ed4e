"""`AsyncLLM`: the engine as an asyncio program sees it. Lives in the API process.

    generate() -> InputProcessor (thread) -> client.add_request ....> engine core
    generate() <- RequestOutputCollector <- OutputProcessor <- output handler <- client.get_output <.... engine core

One task, the output handler, reads what the engine core sends and takes it in, a bounded number of outputs at a time,
so that a wide batch does not hold up the event loop. Readers are woken through their collectors and are never waited
for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from headrace.config.resolved import HeadraceConfig
from headrace.contracts.engine import EngineCoreOutputs
from headrace.contracts.sampling_params import SamplingParams
from headrace.errors import EngineDeadError, OverloadedError, ServiceUnavailableError
from headrace.frontend.chat_prompt import ChatPrompt
from headrace.frontend.core_client.client import AsyncEngineCoreClient
from headrace.frontend.input_processor import DEFAULT_SCHEDULING, InputProcessor, PreparedRequest, Prompt, Scheduling
from headrace.frontend.iteration_stats import IterationStats
from headrace.frontend.metrics import Metrics
from headrace.frontend.output_collector import RequestOutputCollector
from headrace.frontend.output_processor import OutputProcessor, RequestState
from headrace.frontend.request_output import RequestOutput
from headrace.frontend.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

NUM_INPUT_THREADS = 2  # a long prompt does not make short ones wait for it


class AsyncLLM:
    """Make it and call it with one event loop running. `shutdown` ends the engine core's client too."""

    def __init__(
        self, config: HeadraceConfig, client: AsyncEngineCoreClient, *, input_processor: InputProcessor | None = None
    ) -> None:
        """Reads the tokenizer's files unless an `input_processor` is given. Raises `StartupError` for them."""
        self.metrics = Metrics(config.model.served_model_name, config.model.max_model_len)
        self._client = client
        self._input_processor = input_processor or InputProcessor.from_config(config)
        self._output_processor = OutputProcessor(self._input_processor.tokenizer)
        self._threads = ThreadPoolExecutor(NUM_INPUT_THREADS, thread_name_prefix="headrace-input")
        self._is_draining = False
        self._death: str | None = None  # why the engine core is gone
        self._max_active = config.limits.max_active_requests
        self._health_timeout = config.server.health_timeout
        self._chunk_size = config.server.output_chunk_size
        self._last_heard = time.monotonic()  # of an engine core that had something to do
        self._num_active = 0  # calls of generate() that have not ended
        self._idle = asyncio.Event()
        self._idle.set()
        self._output_handler = asyncio.get_running_loop().create_task(self._handle_outputs())

    # ---- requests

    async def prepare(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str | None = None,
        scheduling: Scheduling = DEFAULT_SCHEDULING,
    ) -> PreparedRequest:
        """Check and tokenize, in a thread. Raises the `RequestError` that the request deserves."""
        self._check_accepting()
        return await self.in_thread(self._input_processor.process, prompt, sampling_params, request_id, scheduling)

    async def tokenize(self, prompt: str | ChatPrompt, *, add_special_tokens: bool) -> list[int]:
        """`InputProcessor.tokenize`, in a thread."""
        self._check_accepting()
        return await self.in_thread(self._input_processor.tokenize, prompt, add_special_tokens=add_special_tokens)

    async def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Tokens as the vocabulary writes them."""
        return await self.in_thread(lambda: [self.tokenizer.token(token_id) for token_id in token_ids])

    async def detokenize(self, token_ids: Sequence[object]) -> str:
        """`InputProcessor.detokenize`, in a thread."""
        self._check_accepting()
        return await self.in_thread(self._input_processor.detokenize, token_ids)

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """For what grows with a request: the event loop has no time for it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **kwargs))

    async def generate(
        self,
        prompt: Prompt | PreparedRequest,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream a request's outputs, as its `output_kind` has them. `request_id` is only a label.

        While the engine core still loads, this waits for it. Closing the generator, or cancelling the task that waits
        in it, aborts the request. Raises the `RequestError` that ends the request."""
        if not isinstance(prompt, PreparedRequest):
            prompt = await self.prepare(prompt, sampling_params or SamplingParams(), request_id)
        self._check_accepting()
        self._enter()
        try:
            await self._client.wait_ready()
            collector = RequestOutputCollector(prompt.params.output_kind)
            if not self._output_processor.has_unfinished_requests:
                self._last_heard = time.monotonic()  # it was silent because it was idle
            state = self._output_processor.add_request(prompt, collector)
            try:
                for core_request in prompt.core_requests:
                    self._client.add_request(core_request)
                finished = False
                while not finished:
                    output = await collector.get()
                    finished = output.finished
                    yield output
            finally:
                self._abort(state)
        finally:
            self._leave()

    def _abort(self, state: RequestState) -> None:
        """Does nothing for a request that is over."""
        stats = IterationStats()
        request_ids = self._output_processor.abort_request(state, stats)
        if not request_ids:
            return
        self.metrics.record_iteration(stats)
        if self._death is None:
            self._client.abort_requests(request_ids)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._input_processor.tokenizer

    # ---- life

    @property
    def is_ready(self) -> bool:
        """Whether a request that comes now is worked on at once."""
        return self._client.ready is not None and not self._is_draining and self._death is None

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def is_dead(self) -> bool:
        """Whether the engine core is gone: nothing will be answered any more."""
        return self._death is not None

    @property
    def is_stalled(self) -> bool:
        """Whether the engine core has work and has given no sign of life for too long. A working one speaks at least
        once a second, long prompts or not."""
        silence = time.monotonic() - self._last_heard
        return self._output_processor.has_unfinished_requests and silence > self._health_timeout

    def start_draining(self) -> None:
        """From now on new requests are refused with `ServiceUnavailableError`; those that run go on."""
        self._is_draining = True

    def cancel_all(self, reason: str) -> None:
        """End every running request with `ServiceUnavailableError`."""
        request_ids = self._output_processor.fail_all(reason, ServiceUnavailableError)
        if request_ids and self._death is None:
            self._client.abort_requests(request_ids)

    async def wait_until_idle(self) -> None:
        """Wait until no request is under way."""
        await self._idle.wait()

    def shutdown(self) -> None:
        """Stop at once: running requests end with `EngineDeadError`."""
        self._die("The server is shutting down.")
        self._output_handler.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.shutdown()

    def _check_accepting(self) -> None:
        if self._death is not None:
            raise EngineDeadError(self._death)
        if self._is_draining:
            raise ServiceUnavailableError("The server is shutting down and takes no new requests.")
        if self._num_active >= self._max_active:
            raise OverloadedError("The server has as many requests as it keeps; try again later.")

    def _enter(self) -> None:
        self._num_active += 1
        self._idle.clear()

    def _leave(self) -> None:
        self._num_active -= 1
        if self._num_active == 0:
            self._idle.set()

    # ---- the output handler

    async def _handle_outputs(self) -> None:
        try:
            while True:
                await self._take_in(await self._client.get_output())
        except EngineDeadError as error:
            self._die(error.message)
        except Exception:
            logger.exception("the output handler failed; no request can be answered any more")
            self._die("The server cannot read the engine's output any more.")

    async def _take_in(self, message: EngineCoreOutputs) -> None:
        self._last_heard = time.monotonic()
        stats = IterationStats()
        for start in range(0, len(message.outputs), self._chunk_size):
            chunk = message.outputs[start : start + self._chunk_size]
            to_abort = self._output_processor.process_outputs(chunk, stats)
            if to_abort:
                self._client.abort_requests(to_abort)
            await asyncio.sleep(0)  # readers and new requests get their turn
        self.metrics.record_iteration(stats)
        if message.scheduler_stats is not None:
            self.metrics.record_scheduler(message.scheduler_stats)

    def _die(self, reason: str) -> None:
        if self._death is None:
            self._death = reason
            self._output_processor.fail_all(reason, EngineDeadError)
