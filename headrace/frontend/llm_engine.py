"""`LLMEngine`: the engine for a synchronous caller, who adds requests and drives it step by step. `LLM` is built on it.

add_request()  ->  InputProcessor  ->  EngineCoreClient  ->  engine core
step()         <-  OutputProcessor  <-  get_output()     <-
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.config.resolved import HeadraceConfig
from headrace.contracts.sampling_params import OutputKind, SamplingParams
from headrace.errors import EngineDeadError, InvalidParameterError, RequestError
from headrace.frontend.core_client.client import EngineCoreClient
from headrace.frontend.core_client.inproc import InprocClient
from headrace.frontend.input_processor import InputProcessor, PreparedRequest, Prompt
from headrace.frontend.iteration_stats import IterationStats
from headrace.frontend.output_processor import OutputProcessor, RequestState
from headrace.frontend.request_output import RequestOutput


class LLMEngine:
    """Not for several threads at the same time."""

    def __init__(
        self, model: str = "", *, config: EngineConfig | None = None, multiprocess: bool = False, **settings: Any
    ) -> None:
        """Load a model. `settings` are fields of `EngineConfig`; or give them all as `config`. With `multiprocess` the
        engine core runs in a process of its own, else in this one.

        Raises `StartupError` where the model cannot be loaded, `TypeError` for a setting that there is not."""
        resolved = resolve(config or EngineConfig(model=model, **settings))
        input_processor, client = _connect_process(resolved) if multiprocess else _connect_inside(resolved)
        self._join(input_processor, client, SamplingParams(**resolved.model.sampling_defaults))  # type: ignore[arg-type]

    @classmethod
    def over(cls, input_processor: InputProcessor, client: EngineCoreClient) -> LLMEngine:
        """An engine over parts that exist already."""
        engine = cls.__new__(cls)
        engine._join(input_processor, client, SamplingParams())
        return engine

    def _join(self, input_processor: InputProcessor, client: EngineCoreClient, defaults: SamplingParams) -> None:
        self.default_sampling_params = defaults  # of requests that come without
        self.step_stats = IterationStats()  # what the last step was, in numbers
        self._input_processor = input_processor
        self._output_processor = OutputProcessor(input_processor.tokenizer)
        self._client = client
        self._requests: dict[str, RequestState] = {}
        self._news: dict[str, RequestOutput] = {}  # what has come in this step, by request

    # ---- requests ----------------------------------------------------------------------------------------------------

    def prepare(self, request_id: str, prompt: Prompt, params: SamplingParams | None = None) -> PreparedRequest:
        """Check and tokenize, and run nothing. Raises a `RequestError` for whatever is wrong with the request."""
        name: object = request_id
        if not isinstance(name, str) or not name:
            raise InvalidParameterError("request_id must be a string that is not empty.", param="request_id")
        if params is None:
            params = self.default_sampling_params
        return self._input_processor.process(prompt, params, request_id)

    def add_prepared(self, prepared: PreparedRequest) -> None:
        """Hand over a request from `prepare`. Raises `InvalidParameterError` if one with this id is under way, and
        `EngineDeadError` if the engine core is gone."""
        label = prepared.label
        if label in self._requests:
            raise InvalidParameterError(f"A request with the id {label!r} is under way already.", param="request_id")
        self._requests[label] = self._output_processor.add_request(prepared, _Mailbox(prepared, self._news))
        try:
            for core_request in prepared.core_requests:
                self._client.add_request(core_request)
        except EngineDeadError:
            self.abort_request(label)
            raise

    def add_request(self, request_id: str, prompt: Prompt, params: SamplingParams | None = None) -> None:
        """`step` brings its outputs under `request_id`, as `params.output_kind` says: all so far, what is new, or one
        output at the end. A prompt is a text, a list of token ids or a `ChatPrompt`.

        Raises a `RequestError` for whatever is wrong with the request."""
        self.add_prepared(self.prepare(request_id, prompt, params))

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End these requests; there will be no more outputs of them. Ids that are unknown or over are ignored."""
        to_abort: list[str] = []
        for label in [request_ids] if isinstance(request_ids, str) else request_ids:
            state = self._requests.pop(label, None)
            if state is not None:
                to_abort += self._output_processor.abort_request(state, IterationStats())
        if to_abort:
            self._client.abort_requests(to_abort)

    def has_unfinished_requests(self) -> bool:
        return bool(self._requests)

    def get_num_unfinished_requests(self) -> int:
        return len(self._requests)

    # ---- work --------------------------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Work until the engine core has something to report; the news, at most one output for each request.

        A request that fails comes as a finished output with its `error`. Raises `EngineDeadError` if the engine core is
        gone, and every request with it."""
        self.step_stats = IterationStats()
        if not self._requests:
            return []
        try:
            message = self._client.get_output()
        except EngineDeadError:
            self.abort_request(list(self._requests))
            raise
        to_abort = self._output_processor.process_outputs(message.outputs, self.step_stats)
        if to_abort:
            self._client.abort_requests(to_abort)
        outputs = list(self._news.values())
        self._news.clear()
        for output in outputs:
            if output.finished:
                del self._requests[output.request_id]
        return outputs

    def shutdown(self) -> None:
        """Free the model and the KV cache, and end the engine core's process if it has one."""
        self._client.shutdown()


class _Mailbox:
    """Where the output processor leaves what there is of one request."""

    def __init__(self, prepared: PreparedRequest, news: dict[str, RequestOutput]) -> None:
        self._prepared = prepared
        self._news = news

    def put(self, output: RequestOutput) -> None:
        earlier = self._news.setdefault(output.request_id, output)
        if earlier is not output:  # of another choice
            earlier.merge(output, is_delta=self._prepared.params.output_kind is OutputKind.DELTA)

    def fail(self, error: RequestError) -> None:
        prepared = self._prepared
        output = RequestOutput(prepared.label, prepared.prompt, prepared.prompt_token_ids, [], True)
        output = self._news.setdefault(prepared.label, output)
        output.finished, output.error = True, error


def _connect_inside(config: HeadraceConfig) -> tuple[InputProcessor, EngineCoreClient]:
    return InputProcessor.from_config(config), InprocClient(config)


def _connect_process(config: HeadraceConfig) -> tuple[InputProcessor, EngineCoreClient]:
    """The engine core loads the model while the tokenizer is read here."""
    from headrace.frontend.core_client.sync_mp import SyncMPClient  # ZeroMQ, which the other way does without

    client = SyncMPClient(config)
    try:
        input_processor = InputProcessor.from_config(config)
        client.wait_ready()
    except BaseException:
        client.shutdown()
        raise
    return input_processor, client
