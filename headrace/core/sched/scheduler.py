"""The scheduler: in each step, which requests compute how many tokens.

There is no prefill phase and no decode phase. A request has known tokens (prompt and output) and computed tokens; each
step gives it tokens until the two meet, within a budget of tokens for the step. Running requests come first, so decodes
never starve; a prompt longer than the budget is spread over several steps.

Steady decode must cost what changes, not what exists. So a running request is in one of two sets:

- `_decoding`: all but its last token is computed. It takes exactly one token in every step, without being looked at. It
  needs a new block every `block_size` steps, and the *growth wheel* knows in which: slot `step % block_size` holds the
  requests whose next token opens a block in that step. Which step gives it the last token that it may have is known
  from the beginning too (`_last_steps`).
- `_prefilling`: more than one token to go (a new prompt, or a context being recomputed). Few at any time, as the first
  of them usually takes the whole rest of the budget.

The budget is at least `max_num_seqs` (config.resolve sees to it), so that every decoding request fits in every step.
Beside decoding requests prompts get only a part of it (`_prefill_budget`): what these sample next waits for the whole
step.

Who waits and who goes first is `waiting_queue.py`, who gives way `preemption.py`; docs/scheduling.md has the rules and
the bounds that follow from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from itertools import chain, islice

from headrace.config.resolved import CacheConfig, SchedulerConfig
from headrace.contracts.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput
from headrace.contracts.model_runner import ModelRunnerOutput
from headrace.contracts.scheduler import CachedRequestData, NewRequestData, SchedulerOutput
from headrace.contracts.stats import SchedulerStats
from headrace.core.kv_cache.manager import KVCacheManager
from headrace.core.request import FINISH_REASONS, Request, RequestStatus
from headrace.core.sched.admission import check_fits
from headrace.core.sched.preemption import choose_displaced, choose_victim, is_protected
from headrace.core.sched.update import attach_logprobs, judge_token
from headrace.core.sched.waiting_queue import RANKS, WaitingQueue
from headrace.errors import InvariantError

MAX_LOOK_PAST = 8  # requests that do not fit now and are looked past in one step

Outputs = dict[int, list[EngineCoreOutput]]  # by client index


class Scheduler:
    """One thread only."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        num_kv_blocks: int,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives the time stamps of events, in seconds."""
        self.kv = KVCacheManager(
            num_kv_blocks,
            cache.block_size,
            enable_caching=cache.enable_prefix_caching,
            verify_hits=cache.verify_prefix_hits,
        )
        self._clock = clock
        self._max_passes = config.max_passes
        self._displaces = config.policy == "priority"
        self._rank = RANKS[config.policy]
        self._max_num_seqs = config.max_num_seqs
        self._budget = config.max_num_batched_tokens
        self._prefill_tokens_per_request = config.prefill_tokens_per_request
        self._min_prefill_limit = config.min_prefill_limit
        self._requests: dict[str, Request] = {}  # all that are not finished
        self._waiting = WaitingQueue(self._rank, patience=config.patience)
        self._prefilling: dict[str, Request] = {}
        self._decoding: dict[str, Request] = {}
        self._wheel: list[dict[str, Request]] = [{} for _ in range(cache.block_size)]
        self._last_steps: dict[int, dict[str, Request]] = {}
        self._max_prompt_logprobs = config.max_prompt_logprobs
        self._prompt_logprobs_left = 0  # in the step that is being decided
        self._step = 0
        self._num_arrived = 0
        self._num_preemptions = 0
        self.num_duplicates = 0  # requests that came twice
        self._dropped_ids: list[str] = []  # finished since the last step: the worker still has their rows

    # ---- requests come and go ----------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises a `RequestError` for one that could never run; then nothing is kept of it.

        Ids are made by our own front ends, so a known one is a message that came twice: it is counted and dropped."""
        if request.request_id in self._requests:
            self.num_duplicates += 1
            return
        check_fits(request, self.kv)
        request.arrival_order = self._num_arrived
        self._num_arrived += 1
        self._requests[request.request_id] = request
        self._waiting.add(request, self._step)
        self._record(EngineCoreEventType.QUEUED, request)

    def abort_requests(self, request_ids: Iterable[str]) -> Outputs:
        """End these requests, in whatever state they are. Unknown ids are over already, or never came: no matter."""
        outputs: Outputs = {}
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None:
                self._finish(request, RequestStatus.FINISHED_ABORTED)
                outputs.setdefault(request.client_index, []).append(final_output(request))
        return outputs

    @property
    def has_work(self) -> bool:
        """Is there anything to compute, or anything that the worker has yet to forget?"""
        return bool(self._requests or self._dropped_ids)

    @property
    def num_unfinished(self) -> int:
        return len(self._requests)

    # ---- before the step ---------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decide the next step. Its result must come back through `update` before the next call."""
        self._step += 1
        preempted: list[str] = []
        if self._displaces and self._waiting:
            self._make_room(preempted)
        num_displaced = len(preempted)
        grown = self._grow_decodes(preempted)
        num_scheduled = dict.fromkeys(self._decoding, 1)
        budget = self._prefill_budget(len(self._decoding))
        budget = self._continue_prefills(self._prefilling.values(), num_scheduled, budget)
        # After a preemption for want of blocks nobody is started: the blocks are for those that run.
        new = self._admit_waiting(num_scheduled, budget) if len(preempted) == num_displaced else []
        dropped, self._dropped_ids = self._dropped_ids, []
        return SchedulerOutput(
            step=self._step,
            scheduled_new_reqs=new,
            scheduled_cached_reqs=CachedRequestData(list(grown), [[[block_id]] for block_id in grown.values()]),
            num_scheduled_tokens=num_scheduled,
            total_num_scheduled_tokens=sum(num_scheduled.values()),
            preempted_req_ids=preempted,
            finished_req_ids=dropped,
        )

    def _make_room(self, preempted: list[str]) -> None:
        """Preempt for the request whose turn it is, where a place or blocks are held by less urgent ones. Nobody is
        preempted in vain: either it can be started now, or nothing is done."""
        request = next(self._waiting.in_turn(self._step))
        computed = self.kv.find_computed_blocks(request)
        num_blocks, num_spare = self._blocks_needed(request)
        displaced = choose_displaced(
            request,
            self._running(),
            num_places=len(self._decoding) + len(self._prefilling) + 1 - self._max_num_seqs,
            num_blocks=self.kv.num_missing(computed, num_blocks + num_spare),
            freed_by=lambda victim: self.kv.num_freed_by(victim, keep=computed),
        )
        if displaced and self._would_have_tokens_for(request, without=displaced):
            for victim in displaced:
                self._preempt(victim, preempted)

    def _would_have_tokens_for(self, request: Request, without: Iterable[Request]) -> bool:
        """Would the prompts under way leave anything of this step to a request that waits, if some of those that run
        were gone?"""
        gone = {victim.request_id for victim in without}
        prefilling = [other for request_id, other in self._prefilling.items() if request_id not in gone]
        budget = self._prefill_budget(len(self._decoding.keys() - gone))
        return self._continue_prefills(prefilling, {}, budget) > 0 and self._has_logprobs_for(request)

    def _grow_decodes(self, preempted: list[str]) -> dict[str, int]:
        """Give a block to each decoding request whose next token opens one; preempt where there is none.

        Returns the new block of each request, and appends to `preempted` the ids of those that gave way."""
        grown: dict[str, int] = {}
        for request in list(self._wheel[self._step % len(self._wheel)].values()):
            while request.status is RequestStatus.RUNNING:
                block_id = self.kv.grow(request)
                if block_id is not None:
                    request.note_decoded()
                    self.kv.register_computed(request)
                    grown[request.request_id] = block_id
                    break
                victim = choose_victim(self._running(), self._rank)
                self._preempt(victim, preempted)
                grown.pop(victim.request_id, None)
        return grown

    def _prefill_budget(self, num_decoding: int) -> int:
        """Most tokens of prompts in this step, those that are under way and those that start: what decodes leave of the
        budget, and beside decodes no more than `prefill_tokens_per_request` for each request that runs or could soon,
        or `min_prefill_limit`."""
        budget = self._budget - num_decoding
        if num_decoding:
            num_requests = min(len(self._requests), self._max_num_seqs)
            budget = min(budget, max(self._min_prefill_limit, self._prefill_tokens_per_request * num_requests))
        return budget

    def _continue_prefills(self, prefilling: Collection[Request], num_scheduled: dict[str, int], budget: int) -> int:
        """Give unfinished prompts the budget for prompts, by rank. Returns what is left then; if anything is, each of
        them has got a token at least.

        A prompt whose logprobs are wanted leaves one of the step's to each such prompt behind it: they are enough, as
        nobody starts without one. A prompt less urgent than the request whose turn it is gets only half of what is
        there: the other half is for that one."""
        self._prompt_logprobs_left = self._max_prompt_logprobs
        if not prefilling:
            return budget
        urgent = next(self._waiting.in_turn(self._step), None) if self._displaces else None
        num_behind = sum(request.prompt_logprobs is not None for request in prefilling)
        for request in sorted(prefilling, key=self._rank):
            if budget == 0:
                break
            limit = budget
            if request.prompt_logprobs is not None:
                num_behind -= 1
                limit = min(limit, self._prompt_logprobs_left - num_behind)
            if urgent is not None and urgent.priority < request.priority and self._has_logprobs_for(urgent):
                limit = max(1, limit // 2)
            budget -= self._give_tokens(request, num_scheduled, limit)
        return budget

    def _has_logprobs_for(self, request: Request) -> bool:
        """Has the step logprobs of prompts left for this request, if it wants any?"""
        return request.prompt_logprobs is None or self._prompt_logprobs_left > 0

    def _give_tokens(self, request: Request, num_scheduled: dict[str, int], limit: int) -> int:
        """Let a request compute its next tokens in this step. Returns how many: all, or `limit`, or as many as there
        are logprobs of prompts left in the step, if it wants them."""
        num_tokens = min(request.num_tokens - request.num_computed_tokens, limit)
        if request.prompt_logprobs is not None:
            num_tokens = min(num_tokens, self._prompt_logprobs_left)
            self._prompt_logprobs_left -= num_tokens
        num_scheduled[request.request_id] = num_tokens
        return num_tokens

    def _admit_waiting(self, num_scheduled: dict[str, int], budget: int) -> list[NewRequestData]:
        """Start waiting requests in turn while they fit: a place, budget, and blocks for all their known tokens.

        One whose blocks are not to be had now may be passed by those behind it, but not for ever. One that would find
        no logprobs of prompts left may be passed until it is overdue: those that want none take nothing from it."""
        num_places = self._max_num_seqs - len(self._decoding) - len(self._prefilling)
        if not self._waiting or budget == 0 or num_places == 0:
            return []
        new: list[NewRequestData] = []
        passed: list[Request] = []
        for request in list(islice(self._waiting.in_turn(self._step), num_places + MAX_LOOK_PAST)):
            if not self._has_logprobs_for(request):
                if self._waiting.is_overdue(request, self._step):
                    break
                continue
            if not self._take_blocks(request):
                passed.append(request)
                if len(passed) > MAX_LOOK_PAST or not self._may_be_passed(request):
                    break
                continue
            for other in passed:
                other.num_passed += 1
            budget -= self._give_tokens(request, num_scheduled, budget)
            self._start(request)
            new.append(new_request_data(request))
            if budget == 0 or len(new) == num_places or not all(map(self._may_be_passed, passed)):
                break
        return new

    def _may_be_passed(self, request: Request) -> bool:
        return request.num_passed < self._max_passes and not self._waiting.is_overdue(request, self._step)

    def _start(self, request: Request) -> None:
        self._waiting.remove(request)
        request.move_to(RequestStatus.RUNNING)
        self._prefilling[request.request_id] = request
        self._record(EngineCoreEventType.SCHEDULED, request)

    def _blocks_needed(self, request: Request) -> tuple[int, int]:
        """How many blocks a request takes when it starts or returns, and how many more have to be free then.

        The blocks of its known tokens. One that was preempted returns only when one block more is free, so that it is
        not the next victim at once; a protected one takes everything that it can ever need."""
        most = self.kv.blocks_for(request.max_positions)
        if is_protected(request):
            return most, 0
        num_blocks = min(self.kv.blocks_for(request.num_tokens), most)
        return num_blocks, min(1, most - num_blocks) if request.status is RequestStatus.PREEMPTED else 0

    def _take_blocks(self, request: Request) -> bool:
        """Give a request that starts or returns its blocks, cached ones where there are any. False if they are not to
        be had; that is not worked out again before some block has become free."""
        kv = self.kv
        if request.blocked_at == kv.pool.num_releases:
            return False
        num_blocks, num_spare = self._blocks_needed(request)
        computed = kv.find_computed_blocks(request)
        if not kv.allocate(request, computed, num_blocks, num_spare=num_spare):
            request.blocked_at = kv.pool.num_releases
            return False
        request.num_computed_tokens = len(computed) * kv.block_size
        if request.status is RequestStatus.WAITING:
            request.num_cached_tokens = request.num_computed_tokens
            if kv.pool.enable_caching and request.prompt_logprobs is None:
                kv.num_queried_tokens += request.num_tokens
                kv.num_hit_tokens += request.num_computed_tokens
        return True

    def _preempt(self, request: Request, preempted: list[str]) -> None:
        """Take a request's blocks and let it wait. What it had computed is computed again, unless the prefix cache
        still has it then. Its id is appended to `preempted`."""
        self._leave_running(request)
        self.kv.free(request)
        request.num_computed_tokens = 0
        if request.prompt_logprobs is not None:
            request.prompt_logprobs = []  # they come again
        request.num_preemptions += 1
        request.move_to(RequestStatus.PREEMPTED)
        self._waiting.add(request, self._step)
        self._num_preemptions += 1
        self._record(EngineCoreEventType.PREEMPTED, request)
        preempted.append(request.request_id)

    # ---- after the step ----------------------------------------------------------------------------------------------

    def update(self, step: SchedulerOutput, result: ModelRunnerOutput) -> Outputs:
        """Take in what a step computed. Requests that ended while it ran are gone, and their tokens are dropped; one
        that has come anew since then waits, and is not spoken to."""
        for request_id, prompt_logprobs in (result.prompt_logprobs or {}).items():
            request = self._prefilling.get(request_id)
            if request is not None and request.prompt_logprobs is not None:
                request.prompt_logprobs += prompt_logprobs
        started = self._advance_prefills(step)
        # Those that need more than their token appended: the first one after a start, and perhaps the last one.
        special = self._last_steps.pop(self._step, {})
        special.update((request.request_id, request) for request in started)
        decoding, prefilling, outputs = self._decoding, self._prefilling, Outputs()
        for request_id, token_id in zip(result.req_ids, result.sampled_token_ids, strict=True):
            request = decoding.get(request_id) or prefilling.get(request_id)
            if request is None:
                continue
            first_index = len(request.all_token_ids) - request.num_prompt_tokens
            request.all_token_ids.append(token_id)
            output = EngineCoreOutput(request_id, first_index, [token_id])
            if token_id in request.stop_token_ids or request_id in special:
                self._look_closer(request, token_id, output)
            client_outputs = outputs.get(request.client_index)
            if client_outputs is None:
                outputs[request.client_index] = [output]
            else:
                client_outputs.append(output)
        for request in started:
            if not request.status.is_finished:
                self._start_decoding(request)
        if result.logprobs is not None:
            attach_logprobs(chain.from_iterable(outputs.values()), result.logprobs)
        return outputs

    def _look_closer(self, request: Request, token_id: int, output: EngineCoreOutput) -> None:
        """What is rare: the first token since a start has news with it, and a token may be the last."""
        if output.first_index == 0:
            output.num_cached_tokens = request.num_cached_tokens
            output.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
        if request.events:
            output.events, request.events = list(request.events), ()
        status = judge_token(request, token_id)
        if status is None:
            return
        self._finish(request, status)
        output.finish_reason = FINISH_REASONS[status]
        if status is RequestStatus.FINISHED_STOPPED and token_id not in request.eos_token_ids:
            output.stop_reason = token_id

    def _advance_prefills(self, step: SchedulerOutput) -> list[Request]:
        """Book the tokens that prefilling requests computed. Returns those that have caught up and sampled a token."""
        caught_up = []
        for request_id, request in self._prefilling.items():
            request.num_computed_tokens += step.num_scheduled_tokens.get(request_id, 0)
            self.kv.register_computed(request)
            if request.num_computed_tokens == request.num_tokens:
                caught_up.append(request)
        return caught_up

    def _start_decoding(self, request: Request) -> None:
        """Move a request that has sampled to the decoding set, and into the wheel slot of the step that first finds its
        blocks full. The next step computes position `num_computed_tokens`."""
        del self._prefilling[request.request_id]
        self._decoding[request.request_id] = request
        request.last_step = self._step + request.max_total_tokens - request.num_tokens
        self._last_steps.setdefault(request.last_step, {})[request.request_id] = request
        steps_left = len(request.block_ids) * self.kv.block_size - request.num_computed_tokens
        if is_protected(request):
            return  # has every block that it can need
        request.due_slot = (self._step + 1 + steps_left) % self.kv.block_size
        self._wheel[request.due_slot][request.request_id] = request

    def _finish(self, request: Request, status: RequestStatus) -> None:
        """The one place where a request ends, from whatever state."""
        if request.status is RequestStatus.RUNNING:
            self._leave_running(request)
            self.kv.free(request)
            self._dropped_ids.append(request.request_id)
        else:
            self._waiting.remove(request)
        del self._requests[request.request_id]
        request.move_to(status)

    def _leave_running(self, request: Request) -> None:
        if self._decoding.pop(request.request_id, None) is not None:
            request.note_decoded()
        self._prefilling.pop(request.request_id, None)
        if request.last_step is not None:
            at_length = self._last_steps.get(request.last_step, {})  # none in that very step
            at_length.pop(request.request_id, None)
            if not at_length:
                self._last_steps.pop(request.last_step, None)
            request.last_step = None
        if request.due_slot is not None:
            del self._wheel[request.due_slot][request.request_id]
            request.due_slot = None

    def _running(self) -> list[Request]:
        return [*self._decoding.values(), *self._prefilling.values()]

    def _record(self, event: EngineCoreEventType, request: Request) -> None:
        request.events += (EngineCoreEvent(event, self._clock()),)

    # ---- asked from outside ------------------------------------------------------------------------------------------

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False, and nothing done, while a request holds blocks."""
        return self.kv.pool.reset_prefix_cache()

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running_reqs=len(self._decoding) + len(self._prefilling),
            num_waiting_reqs=len(self._waiting),
            kv_cache_usage=self.kv.usage,
            prefix_cache_queries=self.kv.num_queried_tokens,
            prefix_cache_hits=self.kv.num_hit_tokens,
            num_preemptions=self._num_preemptions,
            step_counter=self._step,
            longest_wait=self._longest_wait(),
        )

    def _longest_wait(self) -> float:
        request = self._waiting.longest_waiting()
        return 0.0 if request is None else max(0.0, self._clock() - request.events[-1].timestamp)

    def check(self) -> None:
        """Raise `InvariantError` if the book-keeping contradicts itself. Costs what exists: for tests and debugging."""
        running = self._running()
        if self._requests.keys() != {r.request_id for r in (*running, *self._waiting.in_turn(self._step))}:
            raise InvariantError("the requests are not those that run or wait")
        if len(self._requests) != len(running) + len(self._waiting):
            raise InvariantError("a request runs and waits")
        due = {request_id for slot in self._wheel for request_id in slot}
        if due != {request_id for request_id, request in self._decoding.items() if not is_protected(request)}:
            raise InvariantError("the growth wheel does not hold the requests that will need a block")
        if {request_id for ends in self._last_steps.values() for request_id in ends} != self._decoding.keys():
            raise InvariantError("not every decoding request, or another one, has a last step")
        for request in running:
            if request.request_id in self._decoding:
                request.note_decoded()
            if not request.num_computed_tokens < request.num_tokens <= len(request.block_ids) * self.kv.block_size + 1:
                raise InvariantError(f"request {request.request_id} has not the blocks that its tokens need")
        self.kv.pool.check([request.block_ids for request in running])


def new_request_data(request: Request) -> NewRequestData:
    return NewRequestData(
        req_id=request.request_id,
        prompt_token_ids=request.all_token_ids[: request.num_prompt_tokens].tolist(),
        output_token_ids=request.all_token_ids[request.num_prompt_tokens :].tolist(),
        sampling_params=request.sampling_params,
        block_ids=[list(request.block_ids)],
        num_computed_tokens=request.num_computed_tokens,
    )


def final_output(request: Request) -> EngineCoreOutput:
    """The last word about a request that ends without a new token."""
    return EngineCoreOutput(request.request_id, request.num_output_tokens, [], FINISH_REASONS[request.status])
