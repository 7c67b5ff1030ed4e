"""A conversation as a caller gives it, and the text that the model's template makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from headrace.errors import InvalidParameterError, PromptTemplateError
from headrace.frontend.chat_content import ContentGuard
from headrace.frontend.chat_messages import Message, normalise_messages
from headrace.frontend.chat_template import ChatTemplate
from headrace.frontend.tokenizer.control_tokens import ControlTexts, private_nonce

# What a client may set in a template: switches that templates of published models have. Anything else would reach into
# the template's own names.
TEMPLATE_KWARGS = (
    "clear_thinking", "date_string", "enable_thinking", "model_identity", "preserve_thinking", "reasoning_effort",
    "thinking", "thinking_budget",
)  # fmt: skip
MAX_KWARG_LENGTH = 1024
MAX_KWARG_NUMBER = 2**53


class ChatPrompt(msgspec.Struct, frozen=True):
    """A conversation, with messages as the OpenAI API has them."""

    messages: Sequence[object]
    add_generation_prompt: bool | None = None  # begin the answer; None: unless the last message is continued
    continue_final_message: bool = False  # the answer goes on with the last message, which is the assistant's
    template_kwargs: Mapping[str, object] = {}


class RenderedChat(msgspec.Struct, frozen=True):
    """What the template printed, with what a client spelled of control tokens hidden. `restore` puts it back."""

    text: str
    restore: Callable[[str], str] | None  # None: nothing is hidden

    @property
    def shown(self) -> str:
        return self.text if self.restore is None else self.restore(self.text)


class ChatRenderer:
    def __init__(
        self, template: ChatTemplate, control_texts: ControlTexts, *, max_characters: int, max_messages: int
    ) -> None:
        self._template = template
        self._guard = ContentGuard(control_texts)
        self._max_characters = max_characters
        self._max_messages = max_messages

    def render(self, prompt: ChatPrompt) -> RenderedChat:
        """A text of more than `max_characters` may be cut there: the caller refuses it for its length.

        Raises `InvalidParameterError`, and `PromptTemplateError` where the template refuses the messages."""
        messages = normalise_messages(prompt.messages, max_messages=self._max_messages)
        check_template_kwargs(prompt.template_kwargs)
        add_generation_prompt = _add_generation_prompt(prompt, messages)
        messages, variables, hidden = self._guard.hide(messages, prompt.template_kwargs)
        mark = private_nonce()
        if prompt.continue_final_message:
            messages = [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}{mark} "}]
        restore = None if hidden is None else hidden.restore
        try:
            text = self._template.render(messages, variables, add_generation_prompt=add_generation_prompt)
        except PromptTemplateError as error:  # its words may have content in them
            message = error.message.replace(mark, "")
            raise PromptTemplateError(restore(message) if restore else message, param=error.param) from None
        if prompt.continue_final_message and len(text) <= self._max_characters:
            text = _cut_at(mark, text)
        return RenderedChat(text, restore)


def check_template_kwargs(kwargs: Mapping[str, object]) -> None:
    """Raises `InvalidParameterError` for names that are not allowed and values that are not small."""
    for name, value in kwargs.items():
        if name not in TEMPLATE_KWARGS:
            raise InvalidParameterError(
                f"chat_template_kwargs may have: {', '.join(TEMPLATE_KWARGS)}.", param="chat_template_kwargs"
            )
        if isinstance(value, str):
            is_fine = len(value) <= MAX_KWARG_LENGTH
        else:  # a NaN is not within the bounds either
            is_fine = isinstance(value, bool | int | float) and -MAX_KWARG_NUMBER <= value <= MAX_KWARG_NUMBER
        if not is_fine:
            raise InvalidParameterError(
                f"chat_template_kwargs.{name} must be a boolean, a number of at most {MAX_KWARG_NUMBER}, or a string "
                f"of at most {MAX_KWARG_LENGTH} characters.",
                param=f"chat_template_kwargs.{name}",
            )


def _add_generation_prompt(prompt: ChatPrompt, messages: list[Message]) -> bool:
    if not prompt.continue_final_message:
        return prompt.add_generation_prompt is not False
    if prompt.add_generation_prompt:
        raise InvalidParameterError(
            "add_generation_prompt and continue_final_message exclude each other.", param="continue_final_message"
        )
    if messages[-1]["role"] != "assistant":
        raise InvalidParameterError(
            "continue_final_message needs a last message of the role assistant.", param="continue_final_message"
        )
    return False


def _cut_at(mark: str, text: str) -> str:
    """The prompt up to the end of the last message, which has the mark and a space behind it. Where the template has
    trimmed the space away, it would have trimmed the message's own end, too (as transformers does it)."""
    before, found, behind = text.rpartition(mark)
    if not found:
        raise InvalidParameterError(
            "The model's chat template does not print the last message, so it cannot be continued.",
            param="continue_final_message",
        )
    before = before.replace(mark, "")  # of a template that prints the message twice
    return before if behind.startswith(" ") else before.rstrip()
