"""The second wall: whatever the front end let through, a request that could never run or do harm ends here.

In two parts: what grows with the prompt is looked at in the input thread, the rest when the request is queued.
"""

from __future__ import annotations

from headrace.config.limits import Limits
from headrace.contracts.engine import EngineCoreRequest
from headrace.core.kv_cache.manager import KVCacheManager
from headrace.core.request import Request
from headrace.errors import ContextLengthError, InvalidParameterError, KVCapacityError


def check_tokens(message: EngineCoreRequest, limits: Limits) -> None:
    """Raise the `RequestError` for tokens that cannot be computed or chosen. Before anything is made of them: hashes
    and arrays take no ids that are out of range, and a kernel would write beside its row."""
    num_tokens = len(message.prompt_token_ids) + len(message.output_token_ids)
    message.sampling_params.check_indices(limits)
    if not message.prompt_token_ids:
        raise InvalidParameterError("The prompt is empty.", param="prompt")
    if num_tokens >= limits.max_model_len:
        raise ContextLengthError(
            f"The request has {num_tokens} tokens; with at least one token of answer it must fit the context of "
            f"{limits.max_model_len} tokens.",
            param="prompt",
        )
    for token_ids in (message.prompt_token_ids, message.output_token_ids):
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < limits.vocab_size):
            raise InvalidParameterError(f"Token ids must be between 0 and {limits.vocab_size - 1}.", param="prompt")


def check_fits(request: Request, kv: KVCacheManager) -> None:
    """Raise the `RequestError` that tells why this request can never run here."""
    if request.num_tokens >= request.max_total_tokens:
        raise InvalidParameterError("The request has all the tokens that it asked for already.", param="max_tokens")
    if kv.blocks_for(request.max_positions) > kv.pool.num_blocks:
        raise KVCapacityError(
            f"The request needs up to {request.max_positions} positions of KV cache; the whole cache has "
            f"{kv.pool.num_blocks * kv.block_size}. Ask for fewer tokens, or start the server with more "
            "--kv-cache-memory.",
            param="max_tokens",
        )
