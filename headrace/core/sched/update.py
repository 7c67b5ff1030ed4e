"""What a newly sampled token means for its request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.contracts.engine import EngineCoreOutput
from headrace.contracts.model_runner import TokenLogprobs
from headrace.core.request import Request, RequestStatus


def judge_token(request: Request, token_id: int) -> RequestStatus | None:
    """How the request ends with this token, which is the last of its known tokens; None if it goes on.

    End-of-sequence and stop ids come before length, as clients expect the reason "stop" where both are true. Before
    `min_tokens` the sampler gives no such token; the check here is for a sampler that does."""
    if token_id in request.stop_token_ids and len(request.all_token_ids) > request.min_total_tokens:
        return RequestStatus.FINISHED_STOPPED
    if len(request.all_token_ids) >= request.max_total_tokens:
        return RequestStatus.FINISHED_LENGTH_CAPPED
    return None


def attach_logprobs(outputs: Iterable[EngineCoreOutput], logprobs: Mapping[str, TokenLogprobs]) -> None:
    """Give each of a step's outputs the logprobs of its token, where its request wanted any."""
    for output in outputs:
        found = logprobs.get(output.request_id)
        if found is not None:
            output.new_logprobs = [found]
