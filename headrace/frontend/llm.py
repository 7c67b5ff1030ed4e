"""`LLM`: the engine inside the caller's own process, for scripts and notebooks. Same input and output path as HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.contracts.sampling_params import OutputKind, SamplingParams
from headrace.errors import EngineError, InvalidParameterError
from headrace.frontend.chat_prompt import ChatPrompt
from headrace.frontend.core_client.client import EngineCoreClient
from headrace.frontend.core_client.inproc import InprocClient
from headrace.frontend.input_processor import InputProcessor, PreparedRequest, Prompt
from headrace.frontend.iteration_stats import IterationStats
from headrace.frontend.output_collector import RequestOutputCollector
from headrace.frontend.output_processor import OutputProcessor, RequestState
from headrace.frontend.request_output import RequestOutput

Conversation = Sequence[dict[str, Any]]


class LLM:
    """`LLM("path/to/model.gguf").generate("Once upon a time")`. Not for several threads at the same time."""

    def __init__(self, model: str = "", *, config: EngineConfig | None = None, **settings: Any) -> None:
        """Load a model. `settings` are fields of `EngineConfig`; or give them all as `config`.

        Raises `StartupError` where the model cannot be loaded, `TypeError` for a setting that there is not."""
        resolved = resolve(config or EngineConfig(model=model, **settings))
        self.default_sampling_params = SamplingParams(**resolved.model.sampling_defaults)  # type: ignore[arg-type]
        self._connect(InputProcessor.from_config(resolved), InprocClient(resolved))

    @classmethod
    def over(cls, input_processor: InputProcessor, client: EngineCoreClient) -> LLM:
        """An `LLM` over parts that exist already."""
        llm = cls.__new__(cls)
        llm.default_sampling_params = SamplingParams()
        llm._connect(input_processor, client)
        return llm

    def _connect(self, input_processor: InputProcessor, client: EngineCoreClient) -> None:
        self._input_processor = input_processor
        self._output_processor = OutputProcessor(input_processor.tokenizer)
        self._client = client

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Finish all prompts, in one batch, and return their outputs in the same order.

        A prompt is a text, a list of token ids or a `ChatPrompt`. `sampling_params` is for all, or a list with one for
        each. Raises `InvalidParameterError` or another `RequestError` before anything runs if any prompt is at fault,
        and a `RequestError` if one fails while it runs; the others are given up then."""
        prompt_list = _prompt_list(prompts)
        if sampling_params is None:
            sampling_params = self.default_sampling_params
        params_list = _params_list(sampling_params, len(prompt_list))
        prepared = [
            self._input_processor.process(prompt, params, str(place))
            for place, (prompt, params) in enumerate(zip(prompt_list, params_list, strict=True))
        ]
        return self._run(prepared)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[RequestOutput]:
        """`generate` for one conversation, or a list of them, with messages as the OpenAI API has them.

        With `continue_final_message` the answer goes on with the last message, which must be the assistant's; without,
        `add_generation_prompt` begins an answer, unless it is false."""
        conversations: Any = [messages] if not messages or isinstance(messages[0], dict) else messages
        prompts = [
            ChatPrompt(conversation, add_generation_prompt, continue_final_message, chat_template_kwargs or {})
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params)

    def shutdown(self) -> None:
        """Free the model and the KV cache."""
        self._client.shutdown()

    def _run(self, prepared: Sequence[PreparedRequest]) -> list[RequestOutput]:
        stats = IterationStats()  # nobody reads it here
        states: list[RequestState] = []
        try:
            for request in prepared:
                collector = RequestOutputCollector(OutputKind.FINAL_ONLY)
                states.append(self._output_processor.add_request(request, collector))
                for core_request in request.core_requests:
                    self._client.add_request(core_request)
            while self._output_processor.has_unfinished_requests:
                message = self._client.get_output()
                to_abort = self._output_processor.process_outputs(message.outputs, stats)
                if to_abort:
                    self._client.abort_requests(to_abort)
            return [_final_output(state) for state in states]
        finally:
            self._client.abort_requests(
                [request_id for state in states for request_id in self._output_processor.abort_request(state, stats)]
            )


def _prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several; a list of numbers is one."""
    if isinstance(prompts, str | ChatPrompt) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]  # by its first entry it is no list of prompts
    return list(prompts)  # type: ignore[arg-type]  # and this one is


def _params_list(params: SamplingParams | Sequence[SamplingParams], num_prompts: int) -> list[SamplingParams]:
    """For each prompt its parameters, with all output at the end."""
    given = [params] * num_prompts if isinstance(params, SamplingParams) else list(params)
    if len(given) != num_prompts:
        raise InvalidParameterError(
            f"There are {num_prompts} prompts, but {len(given)} sampling_params.", param="sampling_params"
        )
    return [msgspec.structs.replace(one, output_kind=OutputKind.FINAL_ONLY) for one in given]


def _final_output(state: RequestState) -> RequestOutput:
    """Raises the `RequestError` that ended the request."""
    output = state.collector.take()
    if output is None:
        raise EngineError("The engine has ended a request without an answer.")
    return output
