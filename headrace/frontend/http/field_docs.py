"""For /openapi.json: what the fields of bodies mean, and the bounds that requests are held to.

Names and types are the structs'. A field means the same wherever it is, unless there is an entry `Struct.field`. Bounds
are those that the routes check, as JSON Schema has them; tests send what keeps them and what breaks them. What depends
on several fields (`min_tokens` beside `max_tokens`, a prompt beside the context) is said in words only: programs that
generate requests from it choke on much less.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from headrace.config.limits import Limits
from headrace.contracts.sampling_params import MAX_COUNT, MAX_REPETITION_PENALTY, SEED_MAX, SEED_MIN
from headrace.frontend.chat_messages import ROLES
from headrace.frontend.chat_prompt import MAX_KWARG_LENGTH, MAX_KWARG_NUMBER, TEMPLATE_KWARGS
from headrace.frontend.input_processor import MAX_SALT_LENGTH

Schema = dict[str, Any]

STRUCTS = {
    "ChatCompletionRequest": "A conversation to be continued, and how.",
    "CompletionRequest": "One or several prompts to be continued, and how.",
    "DetokenizeRequest": "Token ids whose text is wanted.",
    "StreamOptions": "What a stream has beside the text.",
    "ChatCompletion": "A whole answer, with all its choices.",
    "ChatChunkChoice": "What is new of one of the answers.",
    "ChatDelta": "What is new: the role first, then pieces of text.",
    "ChatChoice": "One of the answers to the conversation.",
    "ChatMessage": "What the model says.",
    "ChatTokenLogprob": "A token of the answer, and how probable it was.",
    "TopLogprob": "One of the most probable tokens at a place.",
    "Usage": "Tokens, counted.",
    "PromptTokensDetails": "Of the prompt's tokens.",
    "CompletionChoice": "One of the answers to a prompt.",
    "ModelList": "Every name of the served model.",
    "ModelCard": "A model that is served.",
    "Tokenized": "The tokens of a text or a conversation.",
    "Detokenized": "The text of token ids.",
    "Version": "This server's version.",
    "ErrorBody": "Every error of this server.",
    "ErrorDetail": "What went wrong.",
}

FIELDS = {
    # requests
    "model": "Absent, null or empty: the served one. Answers have the first of its names.",
    "stream": "Answer with server-sent events, as tokens come.",
    "stream_options": "Only with `stream`.",
    "include_usage": "End the stream with a chunk that has the usage, and no choices.",
    "n": "How many answers.",
    "temperature": "0 is greedy.",
    "top_p": "Sample from the most probable tokens that have this much probability together. 1: off.",
    "top_k": "Sample from so many most probable tokens. 0 and -1: off.",
    "min_p": "Leave out tokens that are less probable than this, relative to the most probable one. 0: off.",
    "seed": "The same seed gives the same tokens. Absent: random.",
    "stop": "The answer ends before the first of these strings.",
    "stop_token_ids": "The answer ends with any of these tokens.",
    "ignore_eos": "Go on after the end of the sequence.",
    "skip_special_tokens": "Leave special tokens out of the text. Default: true.",
    "include_stop_str_in_output": "The text has the stop string, or the token, that ended it.",
    "min_tokens": "Until then no end of sequence, stop token or stop string ends the answer. At most `max_tokens`.",
    "presence_penalty": "Taken off the logit of each token that is in the answer so far.",
    "frequency_penalty": "Taken off the logit of a token once for each time that the answer has it.",
    "repetition_penalty": "Logits of tokens in prompt or answer are divided by it, negative ones multiplied. 1: off.",
    "logit_bias": "Token id to what is added to its logit.",
    "allowed_token_ids": "The answer has these tokens only.",
    "bad_words": "Texts that the answer never has.",
    "return_tokens_as_token_ids": "In logprobs a token is `token_id:17`, and not its text.",
    "prompt_logprobs": "How many most probable tokens are told at each place of the prompt. Not with `stream`.",
    "priority": "Lower goes first. Other values than 0 need a server with `--scheduling-policy priority`.",
    "cache_salt": "Requests share cached prefixes only within the same salt.",
    "messages": "The conversation.",
    "max_tokens": "Longest answer. Prompt and answer together must fit the context. Default: what the context leaves.",
    "CompletionRequest.max_tokens": "Longest answer. Prompt and answer together must fit the context. null: what the "
    "context leaves. 0 only with `echo`.",
    "max_completion_tokens": "The newer name of `max_tokens`. It wins.",
    "ChatCompletionRequest.logprobs": "Tell how probable each token was.",
    "top_logprobs": "How many most probable tokens are told at each place. Needs `logprobs`.",
    "add_generation_prompt": "Begin the assistant's answer. Default: true, unless the last message is continued.",
    "continue_final_message": "The answer goes on with the last message, which must be the assistant's.",
    "chat_template_kwargs": "Switches of the chat template.",
    "CompletionRequest.prompt": "A text, a list of texts, token ids, or a list of lists of token ids.",
    "echo": "The text begins with the prompt; with `logprobs`, these too.",
    "best_of": "Another way to say `n`: only the same value.",
    "CompletionRequest.logprobs": "How many most probable tokens are told at each place, beside the sampled one.",
    "TokenizeRequest.prompt": "A text. Either this or `messages`.",
    "TokenizeRequest.messages": "A conversation. Either this or `prompt`.",
    "add_special_tokens": "true only with `prompt`: add what the model expects around a text. Default: true.",
    "TokenizeRequest.add_generation_prompt": "Only with `messages`: begin the assistant's answer. Default: true.",
    "TokenizeRequest.continue_final_message": "Only with `messages`: leave the last one, the assistant's, open.",
    "TokenizeRequest.chat_template_kwargs": "Only with `messages`: switches of the chat template.",
    "return_token_strs": "Answer with `token_strs`, too.",
    "DetokenizeRequest.tokens": "At most as many as the context has.",
    # answers
    "id": "This answer's name.",
    "object": "What kind of object this is.",
    "created": "Seconds since 1970.",
    "ChatCompletion.model": "The first of the served model's names.",
    "ChatCompletionChunk.model": "The first of the served model's names.",
    "Completion.model": "The first of the served model's names.",
    "choices": "The answers, by `index`; in an event of a stream, what is new of one.",
    "usage": "Of the whole request.",
    "ChatCompletion.prompt_logprobs": "For each token of the prompt, by token id; null for the first.",
    "CompletionChoice.prompt_logprobs": "For each token of the prompt, by token id; null for the first.",
    "index": "Which of the choices. Those of prompt p have the numbers from p * n on.",
    "message": "The answer.",
    "delta": "What is new.",
    "logprobs": "For each token how probable it was; null if not asked for.",
    "finish_reason": "`stop` (end of sequence, stop token or stop string) or `length`; null while it goes on.",
    "role": "Who speaks.",
    "content": "The text.",
    "ChatLogprobs.content": "The tokens of the answer, in order.",
    "refusal": "Always null.",
    "token": "Its text; bytes that are no text on their own are U+FFFD.",
    "rank": "How many tokens are at least as probable, itself included.",
    "decoded_token": "Its text.",
    "logprob": "The natural logarithm of its probability; minus infinity is -9999.",
    "bytes": "Its text as bytes.",
    "ChatTokenLogprob.top_logprobs": "The most probable tokens at this place.",
    "prompt_tokens": "In all prompts.",
    "completion_tokens": "In all answers.",
    "total_tokens": "Both.",
    "prompt_tokens_details": "More about `prompt_tokens`.",
    "cached_tokens": "Those that the prefix cache had.",
    "text": "What was generated.",
    "text_offset": "Characters of the choice's text before this token.",
    "token_logprobs": "The natural logarithm of each token's probability; minus infinity is -9999.",
    "CompletionLogprobs.tokens": "The texts of the tokens.",
    "CompletionLogprobs.top_logprobs": "The most probable tokens at each place, and the sampled one.",
    "data": "The models.",
    "ModelCard.id": "The name that requests give.",
    "owned_by": "Always `headrace`.",
    "max_model_len": "Longest prompt and answer together, in tokens.",
    "count": "How many tokens.",
    "Tokenized.tokens": "Their ids.",
    "token_strs": "The tokens as the vocabulary writes them; null if not asked for.",
    "Detokenized.prompt": "The text. Bytes that are no UTF-8 are U+FFFD.",
    "version": "As the package has it.",
    "error": "What went wrong.",
    "ErrorDetail.message": "For people.",
    "type": "The kind of error, in OpenAI's words.",
    "param": "The field of the request that is wrong, if it is one.",
    "code": "For programs; null if there is none.",
}


def description_of(struct: str, field: str) -> str:
    """Raises `KeyError` for a field without one."""
    return FIELDS.get(f"{struct}.{field}") or FIELDS[field]


def bounds_of(limits: Limits, models: Collection[str], *, has_priorities: bool) -> dict[str, Schema]:
    """By field, or by `Struct.field`: what a value that is given must be like, beside its type. null always may be."""
    token_id = _between(0, limits.vocab_size - 1)
    token_ids = {"items": {"type": "integer", **token_id}, "minItems": 1}
    text = {"type": "string", "minLength": 1}
    message = _message()
    return {
        "model": {"enum": [*models, "", None]},
        "n": _between(1, limits.max_n),
        "best_of": _between(1, limits.max_n),
        "temperature": _between(0, 2),
        "top_p": {"exclusiveMinimum": 0, "maximum": 1},
        "top_k": _between(-1, MAX_COUNT),
        "min_p": _between(0, 1),
        "seed": _between(SEED_MIN, SEED_MAX),
        "stop": {
            "minLength": 1,
            "maxLength": limits.max_stop_string_length,
            "items": text | {"maxLength": limits.max_stop_string_length},
            "maxItems": limits.max_stop_strings,
        },
        "stop_token_ids": token_ids | {"minItems": 0, "maxItems": limits.max_stop_token_ids},
        "min_tokens": _between(0, MAX_COUNT),
        "max_tokens": _between(1, MAX_COUNT),
        "CompletionRequest.max_tokens": _between(0, MAX_COUNT),
        "max_completion_tokens": _between(1, MAX_COUNT),
        "presence_penalty": _between(-2, 2),
        "frequency_penalty": _between(-2, 2),
        "repetition_penalty": {"exclusiveMinimum": 0, "maximum": MAX_REPETITION_PENALTY},
        "logit_bias": {
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
            "additionalProperties": {"type": "number", **_between(-100, 100)},
            "maxProperties": limits.max_logit_bias,
        },
        "allowed_token_ids": token_ids | {"maxItems": limits.vocab_size},
        "bad_words": {
            "items": text | {"maxLength": limits.max_bad_word_length, "pattern": _NOT_BLANK},
            "maxItems": limits.max_bad_words,
        },
        "priority": _between(-MAX_COUNT, MAX_COUNT) if has_priorities else {"enum": [0, None]},
        "cache_salt": {"minLength": 1, "maxLength": MAX_SALT_LENGTH},
        "messages": {"items": message, "minItems": 1, "maxItems": limits.max_messages},
        "CompletionRequest.logprobs": _between(0, limits.max_logprobs),
        "prompt_logprobs": _between(0, limits.max_logprobs),
        "top_logprobs": _between(0, limits.max_logprobs),
        "chat_template_kwargs": {
            "properties": dict.fromkeys(TEMPLATE_KWARGS, _TEMPLATE_SWITCH),
            "additionalProperties": False,
        },
        "CompletionRequest.prompt": {
            "anyOf": [
                text,
                {"type": "array", "items": text, "minItems": 1, "maxItems": limits.max_prompts},
                {"type": "array", "maxItems": limits.max_model_len - 1, **token_ids},
                {
                    "type": "array",
                    "items": {"type": "array", "maxItems": limits.max_model_len - 1, **token_ids},
                    "minItems": 1,
                    "maxItems": limits.max_prompts,
                },
            ]
        },
        "DetokenizeRequest.tokens": token_ids | {"minItems": 0, "maxItems": limits.max_model_len},
    }


_NOT_BLANK = r"[^\s\x1c-\x1f\x85]"  # what Python's str.strip leaves something of
_TEMPLATE_SWITCH: Schema = {
    "anyOf": [
        {"type": "boolean"},
        {"type": "number", "minimum": -MAX_KWARG_NUMBER, "maximum": MAX_KWARG_NUMBER},
        {"type": "string", "maxLength": MAX_KWARG_LENGTH},
    ]
}


def _between(low: int, high: int) -> Schema:
    return {"minimum": low, "maximum": high}


def _message() -> Schema:
    part = {
        "type": "object",
        "properties": {"type": {"enum": ["text"]}, "text": {"type": "string"}},
        "required": ["type", "text"],
    }
    text_or_null = {"type": ["string", "null"]}
    return {
        "type": "object",
        "properties": {
            "role": {"enum": list(ROLES), "description": "Who speaks."},
            "content": {
                "anyOf": [{"type": "string"}, {"type": "array", "items": part}],
                "description": "A text, or text parts, which are joined with line breaks.",
            },
            "name": text_or_null | {"description": "For templates that print it."},
            "tool_call_id": text_or_null | {"description": "For templates that print it."},
            "tool_calls": {"enum": [[], None], "description": "Not supported: only what says that there are none."},
            "function_call": {"enum": [None], "description": "Not supported."},
        },
        "required": ["role", "content"],
    }
