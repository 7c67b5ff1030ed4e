"""Chat messages as clients send them, checked and put into the one shape that templates know.

Decided here: a list of text parts becomes one text, joined with line breaks; `developer` is another word for `system`
where the template does not know it; an empty `tool_calls` is none. Other parts and tool calls are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.errors import InvalidParameterError

Message = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
_PASSED_ON = ("name", "tool_call_id")  # texts beside role and content that templates may print


def normalise_messages(messages: Sequence[object], *, max_messages: int) -> list[Message]:
    """Raises `InvalidParameterError` with the param `messages` or the path of the message, such as
    `messages[2].role`."""
    if not messages:
        raise InvalidParameterError("messages must hold at least one message.", param="messages")
    if len(messages) > max_messages:
        raise InvalidParameterError(f"messages may have at most {max_messages} entries.", param="messages")
    return [_normalise(message, f"messages[{place}]") for place, message in enumerate(messages)]


def rename_developer(messages: list[Message], template_source: str) -> list[Message]:
    if "developer" in template_source:
        return messages
    return [{**message, "role": "system"} if message["role"] == "developer" else message for message in messages]


def _normalise(message: object, path: str) -> Message:
    if not isinstance(message, dict):
        raise InvalidParameterError(f"{path} must be an object.", param=path)
    role = message.get("role")
    if role not in ROLES:
        raise InvalidParameterError(f"{path}.role must be one of {', '.join(ROLES)}.", param=f"{path}.role")
    if message.get("tool_calls") not in (None, []) or message.get("function_call") is not None:
        raise InvalidParameterError("Tool calls in messages are not supported.", param=f"{path}.tool_calls")
    normal = {"role": role, "content": _text(message.get("content"), f"{path}.content")}
    for key in _PASSED_ON:
        value = message.get(key)
        if value is not None and not isinstance(value, str):
            raise InvalidParameterError(f"{path}.{key} must be a string.", param=f"{path}.{key}")
        if value is not None:
            normal[key] = value
    return normal


def _text(content: object, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidParameterError(f"{path} must be a string or a list of text parts.", param=path)
    return "\n".join(_part_text(part, f"{path}[{place}]") for place, part in enumerate(content))


def _part_text(part: object, path: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise InvalidParameterError(f"{path} must be a text part; other kinds are not supported.", param=path)
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidParameterError(f"{path}.text must be a string.", param=f"{path}.text")
    return text
