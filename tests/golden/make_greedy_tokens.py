"""Writes tests/golden/data/smollm2_bf16_greedy.json: what transformers answers to the chat prompts in bfloat16.

    python -m tests.golden.make_greedy_tokens        (takes some minutes)

Greedy, 64 tokens for each prompt, beyond the end of the answer too. For each token there is also

- the gap: how far its logit is above the next one's. Logits are bfloat16 and about 24, where bfloat16 has steps of
  0.125: the gap is often 0, and what it says has been rounded many times on its way.
- what it is alone: the same model's choice after the same tokens, in one pass over this prompt and nothing beside it.
  It is another one at 31 of 1,280 places, 20 of them with a gap of 0.0625 to 0.25: so far does transformers in bfloat16
  agree with itself, and no engine can agree with it further.
- what is right: the tokens that have the highest logit, or come within `CLOSE` of it, when transformers computes in
  float32, after the same tokens and with the same weights.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import DynamicCache, LlamaForCausalLM

from tests.golden.demo_model import chat_prompts, reference_model

DATA = Path(__file__).with_name("data") / "smollm2_bf16_greedy.json"
NUM_TOKENS = 64
CLOSE = 0.05


class Linear(torch.nn.Module):
    """A bfloat16 product as processors with bfloat16 do it: sums in float32, the result rounded. On others torch does
    the same thing a hundred times slower."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = weight.float()  # its values are bfloat16

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x.float(), self.weight).bfloat16()


def bfloat16_model() -> LlamaForCausalLM:
    model = reference_model().bfloat16()
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            model.set_submodule(name, Linear(module.weight.detach()))
    return model


def greedy(model: LlamaForCausalLM, prompts: Sequence[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
    """Tokens and gaps for each prompt, all in one batch, padded on the left as transformers likes it. A token is the
    highest logit, the lowest id among equals."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    cache = DynamicCache()
    tokens, gaps = [], []
    for _ in range(NUM_TOKENS):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        hidden = model.model(ids, mask, positions, cache).last_hidden_state[:, -1]
        logits = model.lm_head(hidden).float()  # [num_prompts, vocab]
        best, second = logits.topk(2).values.T
        tokens.append((logits == best[:, None]).int().argmax(1))
        gaps.append(best - second)
        ids = tokens[-1][:, None]
        mask = torch.cat([mask, torch.ones_like(ids)], 1)
    return torch.stack(tokens, 1).tolist(), torch.stack(gaps, 1).tolist()


def alone_tokens(model: LlamaForCausalLM, prompt: list[int], tokens: list[int]) -> list[int]:
    """What the model gives at the place of each of `tokens`, after those before it."""
    hidden = model.model(torch.tensor([prompt + tokens[:-1]])).last_hidden_state[0, len(prompt) - 1 :]
    logits = model.lm_head(hidden).float()
    return (logits == logits.max(1, keepdim=True).values).int().argmax(1).tolist()


def right_tokens(model: LlamaForCausalLM, prompt: list[int], tokens: list[int]) -> list[list[int]]:
    """For each of `tokens` those that are as good as the best, the best first."""
    logits = model(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
    return [(row.argsort(descending=True)[: int((row >= row.max() - CLOSE).sum())]).tolist() for row in logits]


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)  # sums in one order
    prompts = chat_prompts()
    rounding = bfloat16_model()
    tokens, gaps = greedy(rounding, list(prompts.values()))
    exact = reference_model().bfloat16().float()
    cases = [
        {
            "id": r,
            "prompt": prompt,
            "tokens": answer,
            "gaps": of,
            "alone": alone_tokens(rounding, prompt, answer),
            "right": right_tokens(exact, prompt, answer),
        }
        for (r, prompt), answer, of in zip(prompts.items(), tokens, gaps, strict=True)
    ]
    DATA.write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main()
