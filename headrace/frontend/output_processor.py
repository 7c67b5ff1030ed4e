"""From the engine core's tokens to text, for every request that is under way.

Runs where its caller runs: on the event loop for `AsyncLLM` (which feeds it in chunks), in the caller's thread for
`LLM`. What comes in is judged by id and place: unknown ids are counted and dropped (a request that was aborted may
still have outputs under way), tokens that are known already are dropped, and a gap is an error of that request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from headrace.contracts.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, FinishReason
from headrace.contracts.model_runner import TokenLogprobs
from headrace.contracts.sampling_params import OutputKind, SamplingParams
from headrace.errors import (
    ContextLengthError,
    EngineError,
    InvalidParameterError,
    KVCapacityError,
    RequestError,
    ServiceUnavailableError,
)
from headrace.frontend.detokenizer import Detokenizer, IncrementalDetokenizer, NoDetokenizer
from headrace.frontend.input_processor import PreparedRequest
from headrace.frontend.iteration_stats import FinishedRequestStats, IterationStats
from headrace.frontend.output_collector import OutputSink
from headrace.frontend.request_output import CompletionOutput, RequestOutput
from headrace.frontend.stop_strings import make_stop_matcher
from headrace.frontend.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# What the engine core may refuse a request for, by the code that it sends. Anything else is a fault of ours.
_ENGINE_REFUSALS: dict[str | None, type[RequestError]] = {
    error.code: error for error in (InvalidParameterError, ContextLengthError, KVCapacityError, ServiceUnavailableError)
}


class RequestState:
    """What the choices of a request share; ends when the last of them has ended. They know it, and it does not know
    them: so it goes, with its prompt, when they do, and not when Python looks for cycles."""

    def __init__(self, prepared: PreparedRequest, collector: OutputSink) -> None:
        self.prepared = prepared
        self.collector = collector
        self.num_cached_tokens = 0
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None  # where they are wanted, and have come
        self.num_unfinished = len(prepared.core_requests)
        self._final_outputs: list[CompletionOutput] = []  # only with FINAL_ONLY: those that wait for the last one
        self._early_outputs: list[CompletionOutput] = []  # those that wait for the prompt's logprobs

    def deliver(self, output: CompletionOutput) -> None:
        """Hand news of one choice to the reader; with FINAL_ONLY, all choices together when the last has ended."""
        outputs = [output]
        if self.prepared.params.output_kind is OutputKind.FINAL_ONLY:
            if output.finished:
                self._final_outputs.append(output)
            if self.num_unfinished:
                return
            outputs = sorted(self._final_outputs, key=lambda final: final.index)
        elif self.prepared.params.prompt_logprobs is not None:
            if self.prompt_logprobs is None:
                self._early_outputs.append(output)
                return
            early, self._early_outputs = self._early_outputs, []
            for earlier in early:
                self._put([earlier])
        self._put(outputs)

    def _put(self, outputs: list[CompletionOutput]) -> None:
        self.collector.put(
            RequestOutput(
                request_id=self.prepared.label,
                prompt=self.prepared.prompt,
                prompt_token_ids=self.prepared.prompt_token_ids,
                outputs=outputs,
                finished=self.num_unfinished == 0,
                num_cached_tokens=self.num_cached_tokens,
                prompt_logprobs=self.prompt_logprobs,
            )
        )


class ChoiceState:
    """One sequence: the tokens so far and the text that they make."""

    def __init__(self, request: RequestState, request_id: str, index: int, tokenizer: Tokenizer) -> None:
        params = request.prepared.params
        self.request = request
        self.request_id = request_id  # the engine core's
        self.index = index
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []  # of these tokens
        self.start_time: float | None = None  # in the engine; as all these, by time.monotonic()
        self.first_token_time: float | None = None
        self.last_token_time: float | None = None
        self._kind = params.output_kind
        self._include_stop = params.include_stop_str_in_output
        self._detokenizer = _make_detokenizer(params, tokenizer)
        self._min_tokens = params.min_tokens
        self._stop_matcher = make_stop_matcher(params.stop, include_stop=params.include_stop_str_in_output)
        self._pieces: list[str] = []  # all text so far; not kept with DELTA

    def append(self, new_token_ids: Sequence[int], finish_reason: FinishReason | None) -> tuple[str, str | None]:
        """Take in new tokens. Returns the text to give out, and the stop string that they complete, if any; tokens
        after that are not taken in.

        The token that made the engine core stop is part of the tokens, and of the text only if it was asked for."""
        hidden_place = -1
        if finish_reason is FinishReason.STOP and not self._include_stop:
            hidden_place = len(new_token_ids) - 1
        pieces: list[str] = []
        for place, token_id in enumerate(new_token_ids):
            self.token_ids.append(token_id)
            if place == hidden_place:
                continue
            text = self._detokenizer.append(token_id)
            if len(self.token_ids) <= self._min_tokens:
                pieces.append(text)  # too early for any stop string
                continue
            text, stop = self._stop_matcher.feed(text)
            pieces.append(text)
            if stop is not None:
                return "".join(pieces), stop
        if finish_reason is not None:
            text, stop = self._detokenizer.flush(), None
            if len(self.token_ids) > self._min_tokens:
                text, stop = self._stop_matcher.feed(text)
            pieces.append(text)
            if stop is not None:
                return "".join(pieces), stop
            pieces.append(self._stop_matcher.flush())
        return "".join(pieces), None

    def record_arrival(self, num_new_tokens: int, now: float, stats: IterationStats) -> None:
        """Tokens that come together share the time since the one before evenly."""
        prepared = self.request.prepared
        stats.num_generation_tokens += num_new_tokens
        if self.last_token_time is None:
            self.first_token_time = now
            stats.num_prompt_tokens += len(prepared.prompt_token_ids)
            stats.times_to_first_token.append(now - prepared.arrival_monotonic)
        else:
            stats.inter_token_latencies.append((now - self.last_token_time) / num_new_tokens)
        self.last_token_time = now

    def make_output(
        self, text: str, num_new_tokens: int, finish_reason: FinishReason | None, stop_reason: str | int | None
    ) -> CompletionOutput:
        reason = None if finish_reason is None else finish_reason.text
        first = 0
        if self._kind is OutputKind.DELTA:
            first = len(self.token_ids) - num_new_tokens
        else:
            self._pieces.append(text)
            if self._kind is OutputKind.FINAL_ONLY and finish_reason is None:
                return CompletionOutput(self.index, "", [])
            text = "".join(self._pieces)
        logprobs = None if self.logprobs is None else self.logprobs[first:]
        return CompletionOutput(self.index, text, self.token_ids[first:], reason, stop_reason, logprobs)


class OutputProcessor:
    """Every request that is under way, by the engine core's ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._choices: dict[str, ChoiceState] = {}
        self.num_dropped_outputs = 0  # outputs for ids that are not, or no longer, known

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self._choices)

    def add_request(self, prepared: PreparedRequest, collector: OutputSink) -> RequestState:
        state = RequestState(prepared, collector)
        for index, core_request in enumerate(prepared.core_requests):
            request_id = core_request.request_id
            self._choices[request_id] = ChoiceState(state, request_id, index, self._tokenizer)
        return state

    def open_choices(self, state: RequestState) -> list[ChoiceState]:
        """Those of a request that have not ended, in their order."""
        known = (self._choices.get(core_request.request_id) for core_request in state.prepared.core_requests)
        return [choice for choice in known if choice is not None]

    def abort_request(self, state: RequestState, stats: IterationStats) -> list[str]:
        """Forget a request. Returns the ids that the engine core has to be told of; empty if it is over already."""
        open_choices = self.open_choices(state)
        for choice in open_choices:
            self._finish(choice, FinishReason.ABORT, stats)
        return [choice.request_id for choice in open_choices]

    def fail_all(self, message: str, error_type: type[RequestError]) -> list[str]:
        """End every request with an error of its own. Returns the ids that the engine core still works on."""
        requests = {id(choice.request): choice.request for choice in self._choices.values()}
        request_ids = list(self._choices)
        self._choices.clear()
        for request in requests.values():
            request.collector.fail(error_type(message))
        return request_ids

    def process_outputs(self, outputs: Sequence[EngineCoreOutput], stats: IterationStats) -> list[str]:
        """Give out what these outputs bring. Returns the ids that the engine core has to abort: those that a stop
        string has ended, and those of failed requests."""
        to_abort: list[str] = []
        now = time.monotonic()
        for output in outputs:
            choice = self._choices.get(output.request_id)
            if choice is None:
                self.num_dropped_outputs += 1
            elif output.finish_reason is FinishReason.ERROR:
                to_abort += self._fail(choice, _error_of(output), stats)
            elif output.first_index > len(choice.token_ids):
                lost = EngineError("A part of the answer was lost on its way from the engine.")
                to_abort += self._fail(choice, lost, stats)
            else:
                try:
                    has_stopped = self._take_in(choice, output, now, stats)
                except Exception:  # a fault in one request's text ends that request, and nobody else's
                    logger.exception("the answer of request %s cannot be put together", choice.request_id)
                    error = EngineError("The server failed while it put the answer together.")
                    to_abort += self._fail(choice, error, stats)
                else:
                    if has_stopped:
                        to_abort.append(choice.request_id)
        return to_abort

    def _take_in(self, choice: ChoiceState, output: EngineCoreOutput, now: float, stats: IterationStats) -> bool:
        """Returns whether a stop string has ended what the engine core believes to be going on."""
        num_before = len(choice.token_ids)
        new_token_ids = output.new_token_ids[num_before - output.first_index :]
        finish_reason = output.finish_reason
        if not new_token_ids and finish_reason is None:
            return False
        request = choice.request
        request.num_cached_tokens = max(request.num_cached_tokens, output.num_cached_tokens)
        if output.prompt_logprobs is not None:
            request.prompt_logprobs = [None, *output.prompt_logprobs]
        if output.events:
            stats.queue_times += queue_times(output.events)
            choice.start_time = choice.start_time or start_time(output.events)
        text, stop = choice.append(new_token_ids, finish_reason)
        num_new_tokens = len(choice.token_ids) - num_before
        if choice.logprobs is not None and output.new_logprobs is not None:
            first = num_before - output.first_index
            choice.logprobs += output.new_logprobs[first : first + num_new_tokens]
        stop_reason: str | int | None = output.stop_reason
        if stop is not None:
            finish_reason, stop_reason = FinishReason.STOP, stop
        if num_new_tokens:
            choice.record_arrival(num_new_tokens, now, stats)
        if finish_reason is not None:
            self._finish(choice, finish_reason, stats)
        request.deliver(choice.make_output(text, num_new_tokens, finish_reason, stop_reason))
        return output.finish_reason is None and stop is not None

    def _finish(self, choice: ChoiceState, finish_reason: FinishReason, stats: IterationStats) -> None:
        del self._choices[choice.request_id]
        choice.request.num_unfinished -= 1
        prepared = choice.request.prepared
        stats.finished.append(
            FinishedRequestStats(
                finish_reason=finish_reason,
                num_prompt_tokens=len(prepared.prompt_token_ids),
                num_generation_tokens=len(choice.token_ids),
                e2e_latency=time.monotonic() - prepared.arrival_monotonic,
                prefill_time=_between(choice.start_time, choice.first_token_time),
                decode_time=_between(choice.first_token_time, choice.last_token_time),
            )
        )

    def _fail(self, choice: ChoiceState, error: RequestError, stats: IterationStats) -> list[str]:
        """End the whole request of a choice that failed. Returns the ids of all its choices that may still run, this
        one's too: whatever the engine core thinks of it, nobody waits for it any more."""
        request = choice.request
        if choice.request_id in self._choices:
            self._finish(choice, FinishReason.ERROR, stats)
        others = self.abort_request(request, stats)
        request.collector.fail(error)
        return [choice.request_id, *others]


def queue_times(events: Sequence[EngineCoreEvent]) -> list[float]:
    """Seconds in the engine's queue before the first start, where these events tell; else empty."""
    queued = next((e.timestamp for e in events if e.type is EngineCoreEventType.QUEUED), None)
    started = start_time(events)
    return [] if queued is None or started is None else [started - queued]


def start_time(events: Sequence[EngineCoreEvent]) -> float | None:
    return next((e.timestamp for e in events if e.type is EngineCoreEventType.SCHEDULED), None)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _make_detokenizer(params: SamplingParams, tokenizer: Tokenizer) -> Detokenizer:
    if not params.detokenize:
        return NoDetokenizer()
    return IncrementalDetokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)


def _error_of(output: EngineCoreOutput) -> RequestError:
    """The error that a client gets for an output with the finish reason ERROR."""
    message = output.error_message or "The engine failed while it worked on this request."
    return _ENGINE_REFUSALS.get(output.error_code, EngineError)(message)
