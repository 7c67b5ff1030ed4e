"""`LLM`: all answers to a list of prompts, for scripts and notebooks. Same input and output path as HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.config.engine_config import EngineConfig
from headrace.contracts.sampling_params import OutputKind, SamplingParams
from headrace.errors import InvalidParameterError
from headrace.frontend.chat_prompt import ChatPrompt
from headrace.frontend.core_client.client import EngineCoreClient
from headrace.frontend.input_processor import InputProcessor, PreparedRequest, Prompt
from headrace.frontend.interrupts import held_interrupts
from headrace.frontend.llm_engine import LLMEngine
from headrace.frontend.progress import make_progress
from headrace.frontend.request_output import RequestOutput

Conversation = Sequence[dict[str, Any]]


class LLM:
    """`LLM("path/to/model.gguf").generate("Once upon a time")`. Not for several threads at the same time."""

    def __init__(
        self, model: str = "", *, config: EngineConfig | None = None, multiprocess: bool = False, **settings: Any
    ) -> None:
        """Load a model. `settings` are fields of `EngineConfig`; or give them all as `config`. With `multiprocess` the
        engine core runs in a process of its own, else in this one.

        Raises `StartupError` where the model cannot be loaded, `TypeError` for a setting that there is not."""
        self._wrap(LLMEngine(model, config=config, multiprocess=multiprocess, **settings))

    @classmethod
    def over(cls, input_processor: InputProcessor, client: EngineCoreClient) -> LLM:
        """An `LLM` over parts that exist already."""
        llm = cls.__new__(cls)
        llm._wrap(LLMEngine.over(input_processor, client))
        return llm

    def _wrap(self, engine: LLMEngine) -> None:
        self.llm_engine = engine
        self.default_sampling_params = engine.default_sampling_params

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Finish all prompts, in one batch, and return their outputs in the same order.

        A prompt is a text, a list of token ids or a `ChatPrompt`. `sampling_params` is for all, or a list with one for
        each. A progress bar goes to stderr if that is a terminal, or if `use_tqdm` is true, and not if it is false.

        Raises `InvalidParameterError` or another `RequestError` before anything runs if any prompt is at fault, or if
        `llm_engine` has requests of its own under way, and a `RequestError` if one fails while it runs; the others are
        given up then."""
        if self.llm_engine.has_unfinished_requests():
            raise InvalidParameterError("llm_engine has requests under way; take their outputs with step() first.")
        prompt_list = _prompt_list(prompts)
        if sampling_params is None:
            sampling_params = self.default_sampling_params
        params_list = _params_list(sampling_params, len(prompt_list))
        prepared = [
            self.llm_engine.prepare(str(place), prompt, params)
            for place, (prompt, params) in enumerate(zip(prompt_list, params_list, strict=True))
        ]
        return self._run(prepared, use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, object] | None = None,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """`generate` for one conversation, or a list of them, with messages as the OpenAI API has them.

        With `continue_final_message` the answer goes on with the last message, which must be the assistant's; without,
        `add_generation_prompt` begins an answer, unless it is false."""
        conversations: Any = [messages] if not messages or isinstance(messages[0], dict) else messages
        prompts = [
            ChatPrompt(conversation, add_generation_prompt, continue_final_message, chat_template_kwargs or {})
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def shutdown(self) -> None:
        """Free the model and the KV cache, and end the engine core's process if it has one."""
        self.llm_engine.shutdown()

    def _run(self, prepared: Sequence[PreparedRequest], use_tqdm: bool | None) -> list[RequestOutput]:
        engine = self.llm_engine
        outputs: dict[str, RequestOutput] = {}
        progress = make_progress(len(prepared), use_tqdm)
        try:
            with held_interrupts() as interrupted:
                for request in prepared:
                    engine.add_prepared(request)
                while engine.has_unfinished_requests():
                    for output in engine.step():
                        if output.error is not None:
                            raise output.error
                        outputs[output.request_id] = output
                    progress.update(len(outputs), engine.step_stats)
                    if interrupted():
                        raise KeyboardInterrupt
            return [outputs[request.label] for request in prepared]
        finally:
            progress.close()
            engine.abort_request([request.label for request in prepared])


def _prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several; a list of numbers is one. What is neither is refused as a prompt."""
    is_list = isinstance(prompts, Sequence) and not isinstance(prompts, str | bytes)
    if not is_list or (prompts and isinstance(prompts[0], int)):  # type: ignore[index]  # of a list
        return [prompts]  # type: ignore[list-item]  # by its first entry it is no list of prompts
    return list(prompts)  # type: ignore[arg-type]  # and this one is


def _params_list(params: SamplingParams | Sequence[SamplingParams], num_prompts: int) -> list[SamplingParams]:
    """For each prompt its parameters, with all output at the end."""
    given = [params] * num_prompts if isinstance(params, SamplingParams) else list(params)
    if not all(isinstance(one, SamplingParams) for one in given):
        raise InvalidParameterError(
            "sampling_params must be a SamplingParams, or a list of them.", param="sampling_params"
        )
    if len(given) != num_prompts:
        raise InvalidParameterError(
            f"There are {num_prompts} prompts, but {len(given)} sampling_params.", param="sampling_params"
        )
    return [msgspec.structs.replace(one, output_kind=OutputKind.FINAL_ONLY) for one in given]
