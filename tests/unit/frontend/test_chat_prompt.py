"""What a chat request may say about its prompt, and which template makes it."""

from __future__ import annotations

import msgspec
import pytest

from headrace.contracts.sampling_params import SamplingParams
from headrace.errors import ConfigError, ContextLengthError, InvalidParameterError, ModelFormatError
from headrace.frontend.chat_prompt import ChatPrompt
from headrace.frontend.input_processor import InputProcessor
from headrace.frontend.llm import LLM
from tests.unit.frontend.serving import Server, run_scenario
from tests.unit.frontend.test_chat_template import STRICT
from tests.unit.frontend.test_llm import EchoEngine

TURNS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
HELLO = [{"role": "user", "content": "Hi"}]
BEGUN = [*HELLO, {"role": "assistant", "content": "Hello"}]


@pytest.fixture
def render(config, tokenizer):
    """`render(template, messages, ...)`: the prompt's text. The other fields are `ChatPrompt`'s."""

    def render(template: str, messages: list[object], **fields: object) -> str | None:
        processor = InputProcessor(config.limits, tokenizer, chat_template=template)
        return processor.process(ChatPrompt(messages, **fields), SamplingParams()).prompt

    return render


def test_an_answer_is_begun_unless_the_request_says_no(render):
    assert render(TURNS, HELLO) == "[user]Hi[end][assistant]"
    assert render(TURNS, HELLO, add_generation_prompt=True) == "[user]Hi[end][assistant]"
    assert render(TURNS, HELLO, add_generation_prompt=False) == "[user]Hi[end]"


@pytest.mark.parametrize("content", ["Hello", "end", "", "a<|im_end|>", " two ", "x [end]", "Hi"])
def test_the_final_message_is_continued_at_its_end(render, content):
    messages = [*HELLO, {"role": "assistant", "content": content}]
    for flag in (None, False):
        text = render(TURNS, messages, continue_final_message=True, add_generation_prompt=flag)
        assert text == f"[user]Hi[end][assistant]{content}"


def test_a_template_that_trims_the_final_message_ends_where_it_would(render):
    template = TURNS.replace("m.content", "m.content | trim")
    messages = [*HELLO, {"role": "assistant", "content": " two "}]
    assert render(template, messages, continue_final_message=True) == "[user]Hi[end][assistant]two"


def test_a_final_message_of_parts_is_continued(render):
    messages = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]}]
    assert render(TURNS, messages, continue_final_message=True) == "[user]Hi[end][assistant]Hello"


@pytest.mark.parametrize(
    ("template", "messages", "fields", "words"),
    [
        (TURNS, BEGUN, {"add_generation_prompt": True}, "exclude each other"),
        (TURNS, HELLO, {}, "role assistant"),
        ("{{ messages[0].content }}", BEGUN, {}, "does not print the last message"),
    ],
)
def test_final_messages_that_cannot_be_continued_are_refused(render, template, messages, fields, words):
    with pytest.raises(InvalidParameterError, match=words) as caught:
        render(template, messages, continue_final_message=True, **fields)
    assert caught.value.param == "continue_final_message"


def test_a_final_message_that_is_too_long_is_refused_for_its_length(render):
    messages = [*HELLO, {"role": "assistant", "content": "x" * 100_000}]
    with pytest.raises(ContextLengthError) as caught:
        render(TURNS, messages, continue_final_message=True)
    assert caught.value.param == "messages"


def test_template_kwargs_reach_the_template(render):
    template = "{{ enable_thinking }} {{ thinking_budget }} {{ date_string }} {{ reasoning_effort is defined }}"
    kwargs = {"enable_thinking": False, "thinking_budget": 7, "date_string": "1 May"}
    assert render(template, HELLO, template_kwargs=kwargs) == "False 7 1 May False"


@pytest.mark.parametrize(
    ("kwargs", "param"),
    [
        ({"messages": "x"}, "chat_template_kwargs"),
        ({"bos_token": "x"}, "chat_template_kwargs"),
        ({"x" * 100_000: 1}, "chat_template_kwargs"),
        ({"thinking": ["x"]}, "chat_template_kwargs.thinking"),
        ({"thinking": {"a": 1}}, "chat_template_kwargs.thinking"),
        ({"thinking": None}, "chat_template_kwargs.thinking"),
        ({"thinking": "x" * 1025}, "chat_template_kwargs.thinking"),
        ({"thinking_budget": 10**5000}, "chat_template_kwargs.thinking_budget"),
        ({"thinking_budget": float("nan")}, "chat_template_kwargs.thinking_budget"),
    ],
)
def test_template_kwargs_that_are_not_allowed_are_refused(render, kwargs, param):
    with pytest.raises(InvalidParameterError) as caught:
        render(TURNS, HELLO, template_kwargs=kwargs)
    assert caught.value.param == param
    assert len(caught.value.message) < 300


def test_unknown_template_kwargs_are_told_which_there_are(render):
    with pytest.raises(InvalidParameterError, match=r"enable_thinking, .*thinking_budget"):
        render(TURNS, HELLO, template_kwargs={"enable_thought": True})


def test_a_template_that_does_not_compile_is_told_by_whose_it_is(config, tokenizer):
    with pytest.raises(ConfigError, match=r"^--chat-template: .*does not compile"):
        InputProcessor(config.limits, tokenizer, chat_template="{% for %}")


def test_a_models_template_that_does_not_compile_is_the_models_fault(config, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "facts", msgspec.structs.replace(tokenizer.facts, chat_template="{% for %}"))
    with pytest.raises(ModelFormatError, match="does not compile"):
        InputProcessor(config.limits, tokenizer)


def test_e05_a_template_that_prints_the_bos_gives_one(config, tokenizer):
    processor = InputProcessor(config.limits, tokenizer, chat_template="{{ bos_token }}" + TURNS)
    bos = tokenizer.facts.bos_token_id
    prompt = ChatPrompt(HELLO)
    assert processor.process(prompt, SamplingParams()).prompt_token_ids.count(bos) == 1
    assert processor.tokenize(prompt, add_special_tokens=False).count(bos) == 1
    llm = LLM.over(processor, EchoEngine())
    (output,) = llm.chat(HELLO, SamplingParams(max_tokens=1))
    assert output.prompt_token_ids.count(bos) == 1


def test_offline_chats_have_the_same_switches(config, tokenizer):
    template = TURNS + "{{ thinking }}"
    llm = LLM.over(InputProcessor(config.limits, tokenizer, chat_template=template), EchoEngine())
    params = SamplingParams(max_tokens=1)
    (output,) = llm.chat(BEGUN, params, continue_final_message=True)
    assert output.prompt == "[user]Hi[end][assistant]Hello"
    (output,) = llm.chat(HELLO, params, add_generation_prompt=False, chat_template_kwargs={"thinking": True})
    assert output.prompt == "[user]Hi[end]True"


# ---- over HTTP


def test_a_chat_request_continues_its_final_message(run, says, tokenizer):
    async def scenario(server: Server) -> None:
        response = await server.chat(messages=BEGUN, continue_final_message=True)
        assert response.json()["choices"][0]["message"]["content"] == " there"
        ids = server.engine.seen[-1].prompt_token_ids
        assert b"".join(map(tokenizer.token_bytes, ids)).endswith(b"<|im_start|>assistant\nHello")

    run(scenario, says(" there"))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"thinking": {}}}, "chat_template_kwargs.thinking"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"add_special_tokens": True}, "add_special_tokens"),
    ],
)
def test_a08_wrong_chat_fields_are_refused(run, path, fields, param):
    async def scenario(server: Server) -> None:
        response = await server.client.post(path, json={"messages": HELLO, **fields})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
        assert server.engine.seen == []

    run(scenario)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_e01_e02_a_templates_refusal_is_an_http_error_with_its_words(config, tokenizer, path):
    processor = InputProcessor(config.limits, tokenizer, chat_template=STRICT)

    async def scenario(server: Server) -> None:
        for messages, words in (
            ([{"role": "system", "content": "x"}], "System role not supported"),
            ([*HELLO, *HELLO], "Roles must alternate"),
        ):
            response = await server.client.post(path, json={"messages": messages})
            assert response.status_code == 400
            assert response.json()["error"] == {
                "message": words, "type": "invalid_request_error", "param": "messages", "code": "invalid_messages"
            }  # fmt: skip

    run_scenario(config, processor, scenario, lambda request: ())


def test_e03_a_history_with_an_empty_list_of_tool_calls_is_taken(run, says):
    async def scenario(server: Server) -> None:
        history = [*HELLO, {"role": "assistant", "content": "Hello", "tool_calls": []}, *HELLO]
        assert (await server.chat(messages=history)).status_code == 200

    run(scenario, says("Hello"))
