"""Nobody waits for ever: how long each request may wait, counted in steps, and a watch over it.

Let N be `max_num_seqs` and L the most tokens (prompt and answer) of any request. A wait begins when a request arrives
or is preempted, and ends when it is started.

- *Once overdue* (after `patience` steps) a request goes before all that are not, and nobody who is not overdue starts
  before it. Before it are only those that already waited when its wait began: call them *older*.
- *While the first of the overdue does not fit*, nobody is started, so what runs only gets less. Each step computes at
  least one token of it: of every decoding request, or else of the first prompt. There are at most N L tokens to
  compute; then nothing runs any more, and the pool is larger than any request that was let in.
- Each of the older ones costs that once, and so does the request itself:

      wait  <=  patience + (older + 1) N L   steps

A request waits at most four times: when it arrives and after each of at most three preemptions. A running request that
decodes gets a token in every step. A prompt in progress gets one at least every N L steps: in between, others compute
theirs, and no step starts anybody without giving each prompt in progress a token. The limits of prompts' tokens beside
decodes and of their logprobs change none of this, as they are never zero.

Requests that want none of the logprobs of prompts may pass one that wants some in a step that has no more of them. That
is no pass: they take nothing that it waits for. They do not pass one that is overdue, so all of the above holds.

The watch sees only what crosses the lines between the processes, nothing inside the scheduler. As it knows what happens
to each request, it also holds the outputs to it: their places, their events, their counts of cached tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.contracts.engine import EngineCoreEventType, EngineCoreOutput, EngineCoreRequest
from headrace.contracts.scheduler import SchedulerOutput
from headrace.simulation.scenario import Scenario
from headrace.simulation.violation import Violation

MAX_PREEMPTIONS = 3


def longest_wait(*, patience: int, num_older: int, max_num_seqs: int, longest_request: int) -> int:
    """Most steps that one wait may take."""
    return patience + (num_older + 1) * max_num_seqs * longest_request


def longest_gap(*, max_num_seqs: int, longest_request: int) -> int:
    """Most steps for which a prompt in progress may get no token."""
    return max_num_seqs * longest_request


@dataclass
class Watched:
    """A request that the engine core has and has not finished."""

    rank: tuple[int, int]
    num_output: int  # tokens that have been given out
    began: int  # the step of the last change between waiting and running, or of its last token
    since: float  # seconds; when its last wait began
    place: int  # in the order in which waits began
    num_older: int
    wants_prompt_logprobs: bool  # and has not got them yet
    waits: bool = True
    was_preempted: bool = False
    decodes: bool = False
    num_preemptions: int = 0
    num_passes: int = 0
    num_cached: int | None = None  # tokens found in the prefix cache at its first start
    events: list[EngineCoreEventType] = field(default_factory=lambda: [EngineCoreEventType.QUEUED])  # not yet told


class LivenessWatch:
    """Watches one life of the engine core."""

    def __init__(self, scenario: Scenario, counters: Counter[str], clock: Callable[[], float]) -> None:
        """`clock` is in seconds."""
        self._scenario = scenario
        self._counters = counters
        self._clock = clock
        self._num_preemptions = 0
        self._requests: dict[str, Watched] = {}
        self._step = 0
        self._num_prompt_logprobs = 0  # of the step
        self._num_arrived = 0
        self._num_waits = 0
        self._longest_request = 0

    def state_of(self, request_id: str) -> str:
        """For the statistics of aborts."""
        request = self._requests.get(request_id)
        if request is None:
            return "unknown"
        if request.waits:
            return "preempted" if request.was_preempted else "queued"
        return "decoding" if request.decodes else "prefilling"

    def expected_gauges(self) -> tuple[int, int, int, float]:
        """How many run, how many wait, how often was somebody preempted, and how long has the longest wait lasted."""
        waiting = [request for request in self._requests.values() if request.waits]
        longest = self._clock() - min(waiting, key=lambda r: r.place).since if waiting else 0.0
        return len(self._requests) - len(waiting), len(waiting), self._num_preemptions, longest

    def running(self) -> list[str]:
        return [request_id for request_id, request in self._requests.items() if not request.waits]

    def arrived(self, message: EngineCoreRequest) -> None:
        """The scheduler has taken this request."""
        scenario = self._scenario
        priority = message.priority if scenario.policy == "priority" else 0
        length = len(message.prompt_token_ids) + (message.sampling_params.max_tokens or scenario.max_model_len)
        self._longest_request = max(self._longest_request, min(length, scenario.max_model_len))
        self._requests[message.request_id] = Watched(
            rank=(priority, self._num_arrived),
            num_output=len(message.output_token_ids),
            began=self._step,
            since=self._clock(),
            place=self._num_waits,
            num_older=self._num_waiting(),
            wants_prompt_logprobs=message.sampling_params.prompt_logprobs is not None and not message.output_token_ids,
        )
        self._num_arrived += 1
        self._num_waits += 1

    def ended(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def scheduled(self, step: SchedulerOutput) -> None:
        """Before the worker's answer is taken in."""
        self._step = step.step
        self._num_prompt_logprobs = sum(
            num_tokens
            for request_id, num_tokens in step.num_scheduled_tokens.items()
            if self._requests[request_id].wants_prompt_logprobs
        )
        for request_id in step.preempted_req_ids:
            self._preempted(request_id, is_displaced=bool(step.scheduled_new_reqs))
        for new in step.scheduled_new_reqs:
            self._started(new.req_id, new.num_computed_tokens)
        self._check_starts(step)
        self._check_waits(step)
        self._check_prefill(step)

    def computed(self, outputs: list[EngineCoreOutput]) -> None:
        """What the step has given out. Other ends than by a token are known already, and such a request may even have
        come anew since."""
        for output in outputs:
            request = self._requests.get(output.request_id)
            if request is None or not output.new_token_ids:
                continue
            self._check_output(request, output)
            request.num_output += len(output.new_token_ids)
            request.events = []
            request.decodes, request.wants_prompt_logprobs = True, False
            if output.finish_reason is not None:
                self.ended(output.request_id)

    def _check_output(self, request: Watched, output: EngineCoreOutput) -> None:
        if output.first_index != request.num_output:
            raise Violation("a", "the engine repeats or leaves out tokens", f"{output}, after {request.num_output}")
        if [event.type for event in output.events or []] != request.events:
            raise Violation("a", "other events than happened", f"{output}: {request.events}")
        if output.num_cached_tokens != (request.num_cached if output.first_index == 0 else 0):
            raise Violation("a", "another number of cached tokens than was found", f"{output}: {request.num_cached}")

    def check_at_rest(self) -> None:
        if self._requests:
            raise Violation("a", "a request never ended in the engine", ", ".join(self._requests))

    def _num_waiting(self) -> int:
        return sum(request.waits for request in self._requests.values())

    def _preempted(self, request_id: str, *, is_displaced: bool) -> None:
        request = self._requests[request_id]
        if request.waits:
            raise Violation("d", "a request that does not run was preempted", request_id)
        self._counters["preemptions"] += 1
        self._counters["displaced by priority"] += is_displaced
        self._num_preemptions += 1
        request.num_preemptions += 1
        self._counters["requests protected"] += request.num_preemptions == MAX_PREEMPTIONS
        if request.num_preemptions > MAX_PREEMPTIONS:
            raise Violation("d", f"a request was preempted more than {MAX_PREEMPTIONS} times", request_id)
        request.num_older = self._num_waiting()
        request.began, request.since, request.place = self._step, self._clock(), self._num_waits
        request.waits, request.was_preempted, request.decodes = True, True, False
        request.events.append(EngineCoreEventType.PREEMPTED)
        self._num_waits += 1

    def _started(self, request_id: str, num_cached: int) -> None:
        request = self._requests.get(request_id)
        if request is None or not request.waits:
            raise Violation("d", "a request was started that does not wait", request_id)
        is_overdue = self._is_overdue(request)
        self._counters["overdue admissions"] += is_overdue
        beyond_patience = self._step - request.began - self._scenario.patience
        most = self._longest_wait(request) - self._scenario.patience
        self._counters["waits beyond patience by over 10 % of the bound"] += 10 * beyond_patience > most
        self._counters["waits beyond patience by over 50 % of the bound"] += 2 * beyond_patience > most
        for other in self._requests.values():
            if other is request or not other.waits:
                continue
            if self._is_overdue(other):
                if not is_overdue or other.place < request.place:
                    raise Violation("d", "a request that is overdue was passed", f"by {request_id}")
            elif is_overdue or other.rank > request.rank:
                continue
            elif self._finds_no_prompt_logprobs(other) and not request.wants_prompt_logprobs:
                self._counters["passes for want of logprobs of prompts"] += 1
            else:
                other.num_passes += 1
                self._counters["passes"] += 1
                if other.num_passes > self._scenario.max_passes:
                    raise Violation("d", "a request was passed too often", f"by {request_id}")
        request.waits = False
        request.began = self._step
        request.num_cached = num_cached if request.num_cached is None else request.num_cached
        request.events.append(EngineCoreEventType.SCHEDULED)

    def _finds_no_prompt_logprobs(self, request: Watched) -> bool:
        return request.wants_prompt_logprobs and self._num_prompt_logprobs == self._scenario.max_prompt_logprobs

    def _longest_wait(self, request: Watched) -> int:
        return longest_wait(
            patience=self._scenario.patience,
            num_older=request.num_older,
            max_num_seqs=self._scenario.max_num_seqs,
            longest_request=self._longest_request,
        )

    def _is_overdue(self, request: Watched) -> bool:
        return self._step - request.began >= self._scenario.patience

    def _check_starts(self, step: SchedulerOutput) -> None:
        """A step that starts somebody has a token for all that run, old and new: the bound of the gaps rests on it."""
        for request_id in self.running() if step.scheduled_new_reqs else ():
            if request_id not in step.num_scheduled_tokens:
                raise Violation("d", "a step starts somebody and has no token for one that runs", request_id)

    def _check_waits(self, step: SchedulerOutput) -> None:
        scenario, longest = self._scenario, self._longest_request
        num_running = 0
        for request_id, request in self._requests.items():
            waited = self._step - request.began
            if request.waits:
                most = self._longest_wait(request)
                if waited > most:
                    raise Violation("d", "a request waits beyond the bound", f"{request_id}, {waited} steps of {most}")
                continue
            num_running += 1
            if request_id in step.num_scheduled_tokens:
                request.began = self._step
            elif request.decodes:
                raise Violation("d", "a decoding request got no token", request_id)
            elif waited > longest_gap(max_num_seqs=scenario.max_num_seqs, longest_request=longest):
                raise Violation("d", "a prompt in progress got no token for too long", f"{request_id}, {waited} steps")
        if num_running > scenario.max_num_seqs:
            raise Violation("d", "more requests run than max_num_seqs", str(num_running))
        if step.total_num_scheduled_tokens > scenario.budget:
            raise Violation("d", "a step has more tokens than the budget", str(step.total_num_scheduled_tokens))

    def _check_prefill(self, step: SchedulerOutput) -> None:
        """Beside decodes a step has few tokens of prompts, and at least one where a prompt is in progress."""
        scenario = self._scenario
        running = {request_id: request for request_id, request in self._requests.items() if not request.waits}
        num_decoding = sum(request.decodes for request in running.values())
        if not num_decoding or num_decoding == len(running):
            return
        num_tokens = step.total_num_scheduled_tokens - num_decoding
        num_requests = min(len(self._requests), scenario.max_num_seqs)
        limit = max(scenario.min_prefill_limit, scenario.prefill_tokens_per_request * num_requests)
        self._counters["steps with as many tokens of prompts as decodes allow"] += num_tokens == limit
        if num_tokens == 0:
            raise Violation("d", "no prompt in progress got a token beside decodes", f"step {step.step}")
        if num_tokens > limit:
            raise Violation("d", "too many tokens of prompts beside decodes", f"{num_tokens} of {limit}")
