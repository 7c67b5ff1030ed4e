"""The second wall: whatever the front end let through, a request that could never run or do harm ends here."""

from __future__ import annotations

from collections.abc import Container

from headrace.config.limits import Limits
from headrace.core.kv_cache.manager import KVCacheManager
from headrace.core.request import Request
from headrace.errors import ContextLengthError, InvalidParameterError, KVCapacityError


def check_admissible(request: Request, known_ids: Container[str], limits: Limits, kv: KVCacheManager) -> None:
    """Raise the `RequestError` that tells why this request can never run here."""
    if request.request_id in known_ids:
        raise InvalidParameterError("This request id is in use.")
    if request.num_prompt_tokens == 0:
        raise InvalidParameterError("The prompt is empty.", param="prompt")
    if request.num_tokens >= limits.max_model_len:
        raise ContextLengthError(
            f"The prompt has {request.num_prompt_tokens} tokens; with at least one token of answer it must fit the "
            f"context of {limits.max_model_len} tokens.",
            param="prompt",
        )
    if request.num_tokens >= request.max_total_tokens:
        raise InvalidParameterError("The request has all the tokens that it asked for already.", param="max_tokens")
    if min(request.all_token_ids) < 0 or max(request.all_token_ids) >= limits.vocab_size:
        raise InvalidParameterError(f"Token ids must be between 0 and {limits.vocab_size - 1}.", param="prompt")
    num_blocks = kv.blocks_for(request.max_positions)
    if num_blocks > kv.pool.num_blocks:
        raise KVCapacityError(
            f"The request needs up to {request.max_positions} positions of KV cache; the whole cache has "
            f"{kv.pool.num_blocks * kv.block_size}. Ask for fewer tokens, or start the server with more "
            "--kv-cache-memory.",
            param="max_tokens",
        )
