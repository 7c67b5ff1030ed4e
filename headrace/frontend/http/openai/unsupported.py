"""Request fields that the OpenAI API or vLLM's know and this version does not implement.

Each with the values that ask for nothing; null always does. Another value is refused, so that no client takes a field
for honoured that was not. Fields that nobody knows are ignored, as clients expect, unless they look like a slip of the
pen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import islice

from headrace.errors import InvalidParameterError

logger = logging.getLogger(__name__)

Neutral = Mapping[str, tuple[object, ...]]

_BOTH: dict[str, tuple[object, ...]] = {
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "truncate_prompt_tokens": (),
    "return_token_ids": (False,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "lora_request": (),
}

CHAT: Neutral = {
    **_BOTH,
    "echo": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "add_special_tokens": (False,),
    "documents": ([],),
    "chat_template": (),
}

TOKENIZE: Neutral = {"tools": ([],), "chat_template": (), "documents": ([],), "mm_processor_kwargs": ({},)}

DETOKENIZE: Neutral = {}

COMPLETIONS: Neutral = {**_BOTH, "suffix": ("",), "add_special_tokens": (True,)}

# Fields that are ignored knowingly; none of them is a misspelt one of ours.
IGNORED = frozenset({
    "user", "store", "metadata", "service_tier", "parallel_tool_calls", "prediction", "reasoning_effort", "verbosity",
    "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "request_id", "extra_body",
})  # fmt: skip

_MAX_NAMES = 16  # unknown names that are looked at
_MAX_NAME_LENGTH = 40


def refuse_unsupported(body: Mapping[str, object], neutral: Neutral) -> None:
    """Raises `InvalidParameterError` for the first field that asks for something this version does not have."""
    for name in body.keys() & neutral.keys():
        value = body[name]
        if value is not None and not any(_is_same(value, fine) for fine in neutral[name]):
            raise InvalidParameterError(f"{name} is not supported with this value.", param=name)


def _is_same(value: object, other: object) -> bool:
    """Equal as JSON has it, where true is not 1."""
    return value == other and isinstance(value, bool) is isinstance(other, bool)


def warn_of_misspelt(body: Mapping[str, object], ours: Iterable[str], neutral: Neutral) -> None:
    """Name unknown fields that are one edit away from one of ours in the log."""
    known = set(ours)
    unknown = (name for name in body if name not in known and name not in neutral and name not in IGNORED)
    for name in islice(unknown, _MAX_NAMES):
        if len(name) > _MAX_NAME_LENGTH:
            continue
        for field in sorted(known):
            if len(field) > 2 and is_one_edit_away(name, field):
                logger.warning("a request has the unknown field %r, which is ignored; is %r meant?", name, field)


def is_one_edit_away(a: str, b: str) -> bool:
    """Whether one insertion, deletion, replacement or swap of neighbours turns `a` into `b`."""
    if abs(len(a) - len(b)) > 1 or a == b:
        return False
    start = next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    rest_a, rest_b = a[start:], b[start:]
    return (
        rest_a[1:] == rest_b
        or rest_a == rest_b[1:]
        or rest_a[1:] == rest_b[1:]
        or (rest_a[:2] == rest_b[1::-1] and rest_a[2:] == rest_b[2:])
    )
