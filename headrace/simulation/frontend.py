"""Front ends and their users: the real output path, and the client's state machine with its sockets left out.

When a new engine core says hello, a front end sends it everything that is unfinished, with the tokens that it has: the
request goes on where it was. (Nothing but this simulation does so yet.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from headrace.contracts.codec import abort_codec, handshake_codec, outputs_codec, request_codec, utility_codec
from headrace.contracts.engine import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType, UtilityCall
from headrace.contracts.lifecycle import EngineHello
from headrace.contracts.sampling_params import OutputKind, SamplingParams
from headrace.errors import RequestError, ServiceUnavailableError
from headrace.frontend.input_processor import PreparedRequest
from headrace.frontend.iteration_stats import IterationStats
from headrace.frontend.output_collector import RequestOutputCollector
from headrace.frontend.output_processor import ChoiceState, OutputProcessor, RequestState
from headrace.frontend.request_output import CompletionOutput, RequestOutput
from headrace.simulation.answer import (
    Answer,
    answer_alone,
    choice_seeds,
    prompt_logprobs_alone,
    prompt_of,
    refusal_code,
)
from headrace.simulation.clock import Clock
from headrace.simulation.fake_tokenizer import FakeTokenizer
from headrace.simulation.scenario import RequestSpec, Scenario
from headrace.simulation.violation import Violation

REQUESTS, ABORTS, UTILITIES = request_codec(), abort_codec(), utility_codec()
HANDSHAKES, OUTPUTS = handshake_codec(), outputs_codec()

Send = Callable[[EngineCoreRequestType, bytes], None]


class SimulatedFrontend:
    """One API server. `connect` gives a way to send to the engine core of an incarnation."""

    def __init__(
        self, scenario: Scenario, counters: Counter[str], *, client_index: int, connect: Callable[[int], Send]
    ) -> None:
        self.client_index = client_index
        self.processor = OutputProcessor(FakeTokenizer(frozenset(scenario.eos_token_ids)))
        self._counters = counters
        self._connect = connect
        self._send: Send | None = None
        self._incarnation: int | None = None
        self._open: dict[str, tuple[EngineCoreRequest, ChoiceState, User]] = {}  # choices that have not ended
        self._calls: set[int] = set()
        self._num_calls = 0

    # ---- what users ask ----------------------------------------------------------------------------------------------

    def submit(self, user: User, prepared: PreparedRequest) -> RequestState:
        state = self.processor.add_request(prepared, user.collector)
        for core_request, choice in zip(prepared.core_requests, self.processor.open_choices(state), strict=True):
            self._open[core_request.request_id] = (core_request, choice, user)
            self._tell(EngineCoreRequestType.ADD, REQUESTS.encode(core_request))
        return state

    def abort(self, state: RequestState) -> None:
        self._abort(self.processor.abort_request(state, IterationStats()))

    def cancel_all(self) -> None:
        """As when the server shuts down and has waited long enough."""
        users = {id(user): user for _, _, user in self._open.values()}
        self._abort(self.processor.fail_all("cancelled", ServiceUnavailableError))
        for user in users.values():
            user.may_be_cancelled = True
            user.wake()

    def reset_prefix_cache(self) -> None:
        if self._send is not None:
            call = UtilityCall(self._num_calls, self.client_index, "reset_prefix_cache")
            self._num_calls += 1
            self._calls.add(call.call_id)
            self._tell(EngineCoreRequestType.UTILITY, UTILITIES.encode(call))

    # ---- what the engine core says -----------------------------------------------------------------------------------

    def receive_hello(self, data: bytes) -> None:
        hello = HANDSHAKES.decode(data)
        if not isinstance(hello, EngineHello):
            raise Violation("a", "the first word of an engine is not hello")
        self._incarnation = hello.incarnation
        self._send = self._connect(hello.incarnation)
        self._calls.clear()  # they end with an error
        for core_request, choice, _ in self._open.values():
            again = msgspec.structs.replace(core_request, output_token_ids=list(choice.token_ids))
            self._tell(EngineCoreRequestType.ADD, REQUESTS.encode(again))

    def receive_outputs(self, data: bytes) -> None:
        message: EngineCoreOutputs = OUTPUTS.decode(data)
        if message.incarnation != self._incarnation:
            self._counters["messages of an engine that was dead"] += 1
            return
        if message.utility_output is not None:
            self._calls.discard(message.utility_output.call_id)
            return
        with_news = [entry for entry in (self._open.get(o.request_id) for o in message.outputs) if entry is not None]
        to_abort = self.processor.process_outputs(message.outputs, IterationStats())
        for output in message.outputs:
            if output.finish_reason is not None:
                self._open.pop(output.request_id, None)
        self._abort(to_abort)
        self._counters["stopped by a string"] += len(to_abort)
        for _, _, user in with_news:
            user.wake()

    def _abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._open.pop(request_id, None)
        if request_ids:
            self._tell(EngineCoreRequestType.ABORT, ABORTS.encode(request_ids))

    def _tell(self, kind: EngineCoreRequestType, payload: bytes) -> None:
        """Before the first hello there is nobody to tell, and all that is unfinished will be sent."""
        if self._send is not None:
            self._send(kind, payload)

    def check_at_rest(self) -> None:
        self._counters["outputs dropped as unknown"] += self.processor.num_dropped_outputs
        if self.processor.has_unfinished_requests or self._open or self._calls:
            raise Violation("e", "a front end holds something at rest", f"client {self.client_index}")


class User:
    """Sends one request, reads at its own pace, perhaps leaves early; compares what it gets with the answer alone."""

    def __init__(
        self, spec: RequestSpec, scenario: Scenario, clock: Clock, *, when_over: Callable[[], None] = lambda: None
    ) -> None:
        self.spec = spec
        self.collector = RequestOutputCollector(OutputKind[spec.output_kind])
        self.is_over = False
        self.may_be_cancelled = False
        self.end = ""  # how it ended, for the statistics
        self._scenario = scenario
        self._clock = clock
        self._when_over = when_over
        self._is_delta = spec.output_kind == "DELTA"
        self._frontend: SimulatedFrontend
        self._state: RequestState
        self._answers: list[Answer] | None = None
        self._got = [CompletionOutput(index, "", []) for index in range(spec.n)]
        self._is_reading = False  # a visit to the collector is planned

    @property
    def request_ids(self) -> list[str]:
        return [f"{self.spec.name}-{index}" for index in range(self.spec.n)]

    def arrive(self, frontend: SimulatedFrontend) -> None:
        self._frontend = frontend
        self._state = frontend.submit(self, self._prepare(frontend.client_index))
        if self.spec.leaves_after is not None:
            self._clock.after(self.spec.leaves_after, self._leave)

    def wake(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._clock.after(self.spec.reads_every, self._read)

    def check_at_rest(self) -> None:
        if not self.is_over:
            raise Violation("a", "a request never ended", str(self.spec.name))
        if self.end == "complete" and self.collector.take() is not None:
            raise Violation("a", "news after the end", str(self.spec.name))

    def _prepare(self, client_index: int) -> PreparedRequest:
        spec, prompt = self.spec, prompt_of(self.spec)
        params = SamplingParams(
            n=spec.n,
            stop=spec.stop,
            stop_token_ids=spec.stop_token_ids,
            max_tokens=spec.max_tokens,
            min_tokens=spec.min_tokens,
            ignore_eos=spec.ignore_eos,
            output_kind=OutputKind[spec.output_kind],
            include_stop_str_in_output=spec.include_stop,
            prompt_logprobs=0 if spec.prompt_logprobs else None,
        )
        max_tokens = spec.max_tokens or max(1, self._scenario.max_model_len - len(prompt))
        core_requests = [
            EngineCoreRequest(
                request_id=request_id,
                client_index=client_index,
                prompt_token_ids=prompt,
                output_token_ids=[],
                sampling_params=params.for_core(
                    seed=seed, max_tokens=max_tokens, prompt_logprobs=None if index else params.prompt_logprobs
                ),
                arrival_time=self._clock.seconds(),
                priority=spec.priority,
                cache_salt=spec.cache_salt,
            )
            for index, (request_id, seed) in enumerate(zip(self.request_ids, choice_seeds(spec), strict=True))
        ]
        return PreparedRequest(str(spec.name), None, prompt, params, core_requests, 0.0)

    def _leave(self) -> None:
        if not self.is_over:
            self._frontend.abort(self._state)
            self._end_with("left")

    def _read(self) -> None:
        self._is_reading = False
        if self.is_over:
            return
        try:
            output = self.collector.take()
        except RequestError as error:
            if self.may_be_cancelled and isinstance(error, ServiceUnavailableError):
                self._end_with("cancelled")
            elif error.code == refusal_code(self.spec, self._scenario):
                self._end_with("refused")
            else:
                raise Violation("a", f"a request ended with {error.code}", f"{self.spec.name}: {error}") from None
            return
        if output is not None:
            self._take_in(output)
            self.wake()  # an error may stand behind what it has read

    def _take_in(self, output: RequestOutput) -> None:
        if refusal_code(self.spec, self._scenario) is not None:
            raise Violation("a", "a request that must be refused was served", str(self.spec.name))
        if not 0 <= output.num_cached_tokens < len(output.prompt_token_ids):
            raise Violation("b", "the cached tokens are not a part of the prompt", str(self.spec.name))
        if output.prompt_logprobs != prompt_logprobs_alone(self.spec):
            raise Violation("b", "other logprobs of the prompt than alone", str(self.spec.name))
        for news in output.outputs:
            got = self._got[news.index]
            if got.finished:
                raise Violation("a", "news after the end", str(self.spec.name))
            self._got[news.index] = joined(got, news) if self._is_delta else news
            self._compare(self._got[news.index], self._answer(news.index))
        if output.finished:
            if not all(got.finished for got in self._got):
                raise Violation("a", "a request ended before its choices", str(self.spec.name))
            self._end_with("complete")

    def _answer(self, index: int) -> Answer:
        if self._answers is None:
            self._answers = [answer_alone(self.spec, self._scenario, seed) for seed in choice_seeds(self.spec)]
        return self._answers[index]

    def _compare(self, got: CompletionOutput, answer: Answer) -> None:
        """What a user has is the beginning of the answer, and at the end all of it."""
        details = f"{self.spec.name}-{got.index}: {got} is not {answer}"
        if got.token_ids != answer.token_ids[: len(got.token_ids)]:
            raise Violation("b", "other tokens than alone", details)
        if not answer.text.startswith(got.text):
            raise Violation("b", "other text than alone", details)
        if not got.finished:
            return
        if got.finish_reason != answer.finish_reason or got.stop_reason != answer.stop_reason:
            raise Violation("b", "another finish reason than alone", details)
        if len(got.token_ids) != len(answer.token_ids) or got.text != answer.text:
            raise Violation("b", "less than alone", details)

    def _end_with(self, end: str) -> None:
        self.is_over, self.end = True, end
        self._when_over()


def joined(got: CompletionOutput, news: CompletionOutput) -> CompletionOutput:
    """With DELTA, news are what is new."""
    return CompletionOutput(
        news.index, got.text + news.text, got.token_ids + news.token_ids, news.finish_reason, news.stop_reason
    )
