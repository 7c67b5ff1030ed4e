"""What it means that an engine's greedy tokens are the reference's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence


def assert_greedy(
    model: torch.nn.Module, prompts: Mapping[str, Sequence[int]], answers: Mapping[str, Sequence[int]], gap: float
) -> None:
    """Each token is the reference's choice after everything before it, or as good as: its logit is within `gap`.

    One forward for all: padding on the right is behind every token that counts, and attention looks back only."""
    sequences = [torch.tensor([*prompts[r], *tokens]) for r, tokens in answers.items()]
    with torch.no_grad():
        hidden = model.model(pad_sequence(sequences, batch_first=True)).last_hidden_state
        for row, (request_id, tokens) in zip(hidden, answers.items(), strict=True):
            start = len(prompts[request_id]) - 1
            logits = model.lm_head(row[start : start + len(tokens)])
            chosen = logits.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
            assert (logits.max(-1).values - chosen).max() <= gap, request_id
