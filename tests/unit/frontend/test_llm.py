"""The offline `LLM` over an engine in memory."""

from __future__ import annotations

import pytest

from headrace.contracts.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from headrace.contracts.sampling_params import SamplingParams
from headrace.errors import InvalidParameterError, KVCapacityError
from headrace.frontend.chat_prompt import ChatPrompt
from headrace.frontend.llm import LLM


class EchoEngine:
    """A synchronous client that answers each request with its own prompt, one token in each step, last come first."""

    def __init__(self, refuses: int | None = None) -> None:
        self.running: dict[str, tuple[EngineCoreRequest, int]] = {}
        self.seen: list[EngineCoreRequest] = []
        self.aborted: list[str] = []
        self.refuses = refuses  # the first prompt token of requests that are refused

    def add_request(self, request: EngineCoreRequest) -> None:
        self.seen.append(request)
        self.running[request.request_id] = (request, 0)

    def abort_requests(self, request_ids: list[str]) -> None:
        self.aborted += request_ids
        for request_id in request_ids:
            self.running.pop(request_id, None)

    def get_output(self) -> EngineCoreOutputs:
        request_id, (request, index) = self.running.popitem()
        tokens = request.prompt_token_ids
        if tokens[0] == self.refuses:
            refusal = {"error_code": "kv_capacity_exceeded", "error_message": "Too large."}
            return EngineCoreOutputs(0, 1, [EngineCoreOutput(request_id, 0, [], FinishReason.ERROR, **refusal)])
        is_last = index + 1 == min(len(tokens), request.sampling_params.max_tokens or 0)
        if not is_last:
            self.running[request_id] = (request, index + 1)
        reason = FinishReason.LENGTH if is_last else None
        return EngineCoreOutputs(0, 1, [EngineCoreOutput(request_id, index, [tokens[index]], reason)])

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def shutdown(self) -> None:
        self.running.clear()


@pytest.fixture
def llm(input_processor):
    return lambda **options: LLM.over(input_processor, EchoEngine(**options))


def test_outputs_come_in_the_order_of_the_prompts(llm):
    outputs = llm().generate(["one two", "three", [40, 41]], SamplingParams(n=2))
    assert [output.outputs[0].text for output in outputs] == ["one two", "three", "89"]
    assert [output.prompt for output in outputs] == ["one two", "three", None]
    assert all([choice.index for choice in output.outputs] == [0, 1] for output in outputs)
    assert all(output.finished for output in outputs)


@pytest.mark.parametrize("prompt", ["one", [40], ChatPrompt([{"role": "user", "content": "one"}])])
def test_one_prompt_needs_no_list(llm, prompt):
    assert len(llm().generate(prompt)) == 1


def test_each_prompt_may_have_parameters_of_its_own(llm):
    params = [SamplingParams(max_tokens=1), SamplingParams(stop=(" three",))]
    outputs = llm().generate(["one two", "two three four"], params)
    assert [output.outputs[0].text for output in outputs] == ["one", "two"]
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "stop"]
    with pytest.raises(InvalidParameterError, match="2 prompts, but 1"):
        llm().generate(["a", "b"], params[:1])


def test_chat_takes_one_conversation_or_several(llm):
    hello = [{"role": "user", "content": "Hello"}]
    (one,) = llm().chat(hello)
    assert one.prompt.endswith("Hello<|im_end|>\n<|im_start|>assistant\n")
    assert len(llm().chat([hello, hello])) == 2


def test_a_prompt_at_fault_is_refused_before_anything_runs(llm):
    offline = llm()
    with pytest.raises(InvalidParameterError):
        offline.generate(["fine", ""])
    assert not offline.llm_engine._client.seen


def test_a_request_that_fails_gives_up_the_others_and_leaves_nothing(llm):
    offline = llm(refuses=41)
    with pytest.raises(KVCapacityError, match="Too large"):
        offline.generate([[40] * 9, [41]])
    assert not offline.llm_engine._client.running
    assert offline.generate([[40]])[0].outputs[0].token_ids == [40]


@pytest.mark.parametrize(
    "prompts", [None, 5, b"one", [b"one"], {"prompt": "one"}, [{"prompt": "one"}], [None], [5.5]], ids=repr
)
def test_what_is_no_prompt_is_refused_with_what_would_be_one(llm, prompts):
    with pytest.raises(InvalidParameterError, match="a text, a list of token ids or a ChatPrompt") as refusal:
        llm().generate(prompts)
    assert refusal.value.param == "prompt"


@pytest.mark.parametrize("params", [{"max_tokens": 3}, [None], ["x"]], ids=repr)
def test_what_is_no_sampling_params_is_refused(llm, params):
    with pytest.raises(InvalidParameterError, match="must be a SamplingParams"):
        llm().generate(["one"], params)


def test_requests_that_the_caller_has_under_way_are_neither_swallowed_nor_ended(llm):
    offline = llm()
    offline.llm_engine.add_request("0", "one two")
    with pytest.raises(InvalidParameterError, match="under way"):
        offline.generate(["three"])
    ends = []
    while offline.llm_engine.has_unfinished_requests():
        ends += [output for output in offline.llm_engine.step() if output.finished]
    assert [(output.request_id, output.outputs[0].text) for output in ends] == [("0", "one two")]
    assert len(offline.generate(["three"])) == 1


def test_no_prompts_have_no_outputs(llm):
    assert llm().generate([]) == []
