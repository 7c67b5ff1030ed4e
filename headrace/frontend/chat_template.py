"""Chat templates: jinja2 programs that come with a model and turn messages into the text that it was trained on.

A template is the model's, not ours, so it runs in jinja2's immutable sandbox, and its output is bounded. What it may
use is what transformers gives it (utils/chat_template_utils.py): `raise_exception`, `strftime_now`, a `tojson` that
leaves HTML characters alone, loop controls, and the texts of the special tokens. Templates never come from a client.
"""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.errors import ModelFormatError, PromptTemplateError
from headrace.frontend.chat_messages import Message, rename_developer

if TYPE_CHECKING:
    import jinja2

logger = logging.getLogger(__name__)

_MAX_ERROR_LENGTH = 500  # characters of a template's own words that a client gets


class _TemplateRefusalError(Exception):
    """A template has called `raise_exception`."""


class ChatTemplate:
    """A compiled template. Rendering does not touch shared state, so threads may render at the same time."""

    def __init__(self, source: str, variables: dict[str, str], *, max_characters: int) -> None:
        """`variables`: texts of special tokens, such as `bos_token`. `max_characters` bounds what is rendered.

        Raises `ModelFormatError` for a template that does not compile."""
        self._source = source
        self._variables = variables
        self._max_characters = max_characters
        self._template = _compile(source)

    def render(self, messages: list[Message], variables: Mapping[str, object], *, add_generation_prompt: bool) -> str:
        """The prompt for these messages; with `add_generation_prompt` it ends with the beginning of an answer.
        `variables` are a client's. A text that grows longer than `max_characters` is not rendered to its end: the
        caller refuses it for its length.

        Raises `PromptTemplateError`, with the template's own words where it refuses the messages."""
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(
                {**variables, **self._variables},
                messages=rename_developer(messages, self._source),
                add_generation_prompt=add_generation_prompt,
            ):
                pieces.append(piece)
                length += len(piece)
                if length > self._max_characters:
                    break
        except _TemplateRefusalError as refusal:
            raise PromptTemplateError(str(refusal)[:_MAX_ERROR_LENGTH], param="messages") from None
        except Exception as error:  # a template is a program: whatever goes wrong in it is the messages' fault
            logger.info("the chat template failed: %s: %s", type(error).__name__, error)
            raise PromptTemplateError(
                "The model's chat template cannot be applied to these messages.", param="messages"
            ) from None
        return "".join(pieces)


def _compile(source: str) -> jinja2.Template:
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ModelFormatError(f"the chat template does not compile: {error}") from None


def _raise_exception(message: object) -> NoReturn:
    raise _TemplateRefusalError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
