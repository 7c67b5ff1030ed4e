"""What it means that an engine's greedy tokens are the reference's."""

from __future__ import annotations

import torch


def assert_greedy(model: torch.nn.Module, prompt: list[int], tokens: list[int], gap: float) -> None:
    """Each token is the reference's choice after everything before it, or as good as: its logit is within `gap`."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    best = logits.max(-1).values
    chosen = logits.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    assert (best - chosen).max() <= gap
