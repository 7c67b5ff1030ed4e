"""How far `LLM.generate` is, on stderr: prompts that are done, and tokens a second in and out."""

from __future__ import annotations

import sys
import time
from typing import Protocol

from headrace.frontend.iteration_stats import IterationStats

REFRESH_S = 0.1


class Progress(Protocol):
    def update(self, num_finished: int, stats: IterationStats) -> None:
        """After a step: so many prompts are done by now, and `stats` is what the step was."""
        ...

    def close(self) -> None: ...


class NoProgress:
    def update(self, num_finished: int, stats: IterationStats) -> None:
        pass

    def close(self) -> None:
        pass


class ProgressBar:
    def __init__(self, num_prompts: int) -> None:
        from tqdm import tqdm  # here, as most callers never look

        self._bar = tqdm(total=num_prompts, desc="Prompts", unit="prompt", dynamic_ncols=True)
        self._began = self._refreshed = time.monotonic()
        self._num_tokens_in = self._num_tokens_out = 0

    def update(self, num_finished: int, stats: IterationStats) -> None:
        self._num_tokens_in += stats.num_prompt_tokens
        self._num_tokens_out += stats.num_generation_tokens
        now = time.monotonic()
        if num_finished == self._bar.n and now - self._refreshed < REFRESH_S:
            return
        self._refreshed = now
        seconds = max(now - self._began, 1e-9)
        rates = f"in {self._num_tokens_in / seconds:.0f} tok/s, out {self._num_tokens_out / seconds:.0f} tok/s"
        self._bar.set_postfix_str(rates, refresh=False)
        self._bar.n = num_finished
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()


def make_progress(num_prompts: int, is_wanted: bool | None) -> Progress:
    """`is_wanted` None: if stderr is a terminal."""
    if is_wanted is None:
        is_wanted = sys.stderr is not None and sys.stderr.isatty()
    return ProgressBar(num_prompts) if is_wanted else NoProgress()
