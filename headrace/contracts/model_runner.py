"""Worker (C) to engine core (B): what a step found."""

from __future__ import annotations

import msgspec


class ModelRunnerOutput(msgspec.Struct, array_like=True, gc=False):
    """The requests that sampled in this step, one token each. Requests in the middle of a prompt are not named."""

    req_ids: list[str]
    sampled_token_ids: list[int]
