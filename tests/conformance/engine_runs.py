"""Whole engine runs, in this process, on token ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.contracts.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from headrace.contracts.sampling_params import SamplingParams
from headrace.frontend.core_client.inproc import InprocClient


def make_client(**settings: object) -> InprocClient:
    return InprocClient(resolve(EngineConfig(**settings)))


def run_requests(
    client: InprocClient, prompts: Mapping[str, Sequence[int]], params: Mapping[str, SamplingParams] | SamplingParams
) -> dict[str, list[int]]:
    """Run all requests together; the output tokens of each. Every request must end by stop or length."""
    tokens: dict[str, list[int]] = {request_id: [] for request_id in prompts}
    for output in outputs_of(client, prompts, params):
        assert output.first_index == len(tokens[output.request_id])
        tokens[output.request_id] += output.new_token_ids
    return tokens


def outputs_of(
    client: InprocClient, prompts: Mapping[str, Sequence[int]], params: Mapping[str, SamplingParams] | SamplingParams
) -> Iterator[EngineCoreOutput]:
    """Run all requests together; what the engine says of them, step by step."""
    for request_id, prompt in prompts.items():
        sampling = params if isinstance(params, SamplingParams) else params[request_id]
        client.add_request(EngineCoreRequest(request_id, 0, list(prompt), [], sampling, 0.0))
    unfinished = set(prompts)
    while unfinished:
        for output in client.get_output().outputs:
            yield output
            if output.finish_reason is not None:
                assert output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH), output.error_message
                unfinished.discard(output.request_id)
