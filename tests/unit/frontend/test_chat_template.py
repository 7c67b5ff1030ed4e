"""Messages to the text that a model was trained on."""

from __future__ import annotations

import pytest

from headrace.errors import InvalidParameterError, ModelFormatError, PromptTemplateError
from headrace.frontend.chat_messages import normalise_messages
from headrace.frontend.chat_template import ChatTemplate

PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{{ bos_token }}{{ m.content }}{% endfor %}"
)


def render(source: str, *messages: tuple[str, object], max_characters: int = 10_000) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>"}, max_characters=max_characters)
    raw = [{"role": role, "content": content} for role, content in messages]
    return template.render(normalise_messages(raw, max_messages=8), {}, add_generation_prompt=True)


def test_messages_are_rendered_ready_for_the_answer():
    assert render(PLAIN, ("user", "Hi")) == "user: Hi\nassistant: "


def test_text_parts_are_joined_by_line_breaks():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert render("{{ messages[0].content }}", ("user", parts)) == "one\ntwo"


def test_developer_is_system_unless_the_template_knows_it():
    assert render("{{ messages[0].role }}", ("developer", "x")) == "system"
    assert render("{{ messages[0].role }}{# developer #}", ("developer", "x")) == "developer"


def test_e01_a_template_that_refuses_the_system_role_says_so_in_its_own_words():
    with pytest.raises(PromptTemplateError, match=r"^System role not supported$") as caught:
        render(STRICT, ("system", "x"))
    assert caught.value.param == "messages"


def test_e02_two_user_turns_in_a_row_are_the_templates_to_judge():
    with pytest.raises(PromptTemplateError, match=r"^Roles must alternate$"):
        render(STRICT, ("user", "a"), ("user", "b"))
    assert render(PLAIN, ("user", "a"), ("user", "b")) == "user: a\nuser: b\nassistant: "


def test_the_templates_words_are_cut_to_a_bound():
    with pytest.raises(PromptTemplateError) as caught:
        render("{{ raise_exception('x' * 100000) }}", ("user", "a"))
    assert len(caught.value.message) == 500


@pytest.mark.parametrize(
    "source", ["{{ messages[0].content + 1 }}", "{{ messages[9].content.x }}", "{{ ''.__class__.__mro__[1]() }}",
               "{{ messages.append(1) }}", "{% for i in range(1000000) %}{% endfor %}"]
)  # fmt: skip
def test_any_other_failure_of_a_template_is_one_fixed_sentence(source):
    with pytest.raises(PromptTemplateError, match="cannot be applied to these messages"):
        render(source, ("user", "secret"))


def test_a_template_that_does_not_compile_is_the_models_fault():
    with pytest.raises(ModelFormatError, match="does not compile"):
        ChatTemplate("{% for %}", {}, max_characters=100)


def test_rendering_stops_soon_after_the_bound():
    source = "{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}"
    assert len(render(source, ("user", "0123456789"), max_characters=100)) == 110


def test_templates_have_what_transformers_gives_them():
    assert render("{{ {'a': '<é>'} | tojson }}", ("user", "")) == '{"a": "<é>"}'
    assert len(render("{{ strftime_now('%Y-%m-%d') }}", ("user", ""))) == 10
    assert (
        render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", ("user", "")) == "1"
    )
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc", ("user", "")) == "a\nb\nc"  # trim_blocks, lstrip_blocks


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "x", "name": 5}], "messages[0].name"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "x"}] * 9, "messages"),
    ],
)
def test_messages_of_a_wrong_shape_are_refused(messages, param):
    with pytest.raises(InvalidParameterError) as caught:
        normalise_messages(messages, max_messages=8)
    assert caught.value.param == param


def test_e03_an_empty_list_of_tool_calls_is_none():
    message = {"role": "assistant", "content": "x", "tool_calls": []}
    assert normalise_messages([message], max_messages=1) == [{"role": "assistant", "content": "x"}]
