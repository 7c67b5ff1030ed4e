"""How large any part of a request may be. Checked before anything of that size is allocated."""

from __future__ import annotations

import msgspec

MAX_LOGIT_BIAS = 1024


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on requests. `vocab_size` and `max_model_len` come from the model, the others are fixed."""

    vocab_size: int
    max_model_len: int
    max_n: int = 128
    max_stop_strings: int = 16
    max_stop_string_length: int = 1024
    max_stop_token_ids: int = 256
    max_logit_bias: int = MAX_LOGIT_BIAS
    max_logprobs: int = 20  # most probable tokens that are told beside the sampled one
    max_bad_words: int = 256
    max_bad_word_length: int = 256  # characters
    max_prompts: int = 1024  # prompts in one completion request
    max_told_prompt_logprobs: int = 2**22  # in one answer, where each choice has its prompt's; some 100 MB
    max_messages: int = 4096
    max_body_bytes: int = 32 * 2**20
    max_incoming_bytes: int = 256 * 2**20  # of all bodies that are not complete yet
    max_active_requests: int = 4096  # running and waiting; each prompt of a completion request is one
