"""Loaded by Python itself in every process of a server whose PYTHONPATH names this folder. In the engine core it makes
requests with certain seeds fail, as no request can by itself; and each process notes how it was optimised."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FAILS_MIDWAY = 101_010  # after three tokens
SPEAKS_LATE = 303_030  # a token comes when it was aborted and is over

if "NOTES" in os.environ:
    Path(os.environ["NOTES"], str(os.getpid())).write_text(str(sys.flags.optimize))

if "headrace.core.engine_core_proc" in sys.orig_argv:
    from headrace.contracts.engine import EngineCoreOutput, FinishReason
    from headrace.core.request import RequestStatus
    from headrace.core.sched.scheduler import Outputs, Scheduler

    update, abort_requests = Scheduler.update, Scheduler.abort_requests

    def faulty_update(self: Scheduler, *arguments: object) -> Outputs:
        outputs = update(self, *arguments)
        for news in outputs.values():
            for output in news:
                request = self._requests.get(output.request_id)
                if request is None or request.sampling_params.seed != FAILS_MIDWAY or output.first_index != 3:
                    continue
                self._finish(request, RequestStatus.FINISHED_ABORTED)
                output.new_token_ids, output.finish_reason = [], FinishReason.ERROR
        return outputs

    def late_abort(self: Scheduler, request_ids: list[str]) -> Outputs:
        late = [
            (request.client_index, EngineCoreOutput(request_id, request.num_output_tokens, [7]))
            for request_id in request_ids
            if (request := self._requests.get(request_id)) is not None and request.sampling_params.seed == SPEAKS_LATE
        ]
        outputs = abort_requests(self, request_ids)
        for client_index, output in late:
            outputs.setdefault(client_index, []).append(output)
        return outputs

    Scheduler.update, Scheduler.abort_requests = faulty_update, late_abort
