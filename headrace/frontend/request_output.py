"""What a caller of `AsyncLLM` and `LLM` gets. Names are vLLM's."""

from __future__ import annotations

import msgspec

from headrace.contracts.model_runner import TokenLogprobs


class CompletionOutput(msgspec.Struct):
    """One choice of a request. With output kind DELTA, `text` and `token_ids` hold only what is new."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None  # "stop", "length" or "abort"; None while it goes on
    stop_reason: str | int | None = None  # the stop string or stop token id; None for end-of-sequence and other ends
    logprobs: list[TokenLogprobs] | None = None  # one for each of `token_ids`, where the request wants them

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class RequestOutput(msgspec.Struct):
    """News of one request. `outputs` has the choices that there is news of; all of them with FINAL_ONLY."""

    request_id: str  # the caller's label
    prompt: str | None  # None where the caller gave token ids
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool  # every choice has ended
    num_cached_tokens: int = 0  # prompt tokens that the prefix cache had, for the choice with the most
    # One for each of `prompt_token_ids`, where the request wants them; None for the first, which nothing comes before.
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    def merge(self, later: RequestOutput, *, is_delta: bool) -> None:
        """Take in news that came after this and was not fetched yet."""
        known = {output.index: place for place, output in enumerate(self.outputs)}
        for output in later.outputs:
            place = known.get(output.index)
            if place is None:
                self.outputs.append(output)
            elif is_delta:
                earlier = self.outputs[place]
                earlier.text += output.text
                earlier.token_ids += output.token_ids
                earlier.finish_reason, earlier.stop_reason = output.finish_reason, output.stop_reason
                if earlier.logprobs is not None and output.logprobs is not None:
                    earlier.logprobs += output.logprobs
            else:
                self.outputs[place] = output
        self.finished = later.finished
        self.num_cached_tokens = max(self.num_cached_tokens, later.num_cached_tokens)
        self.prompt_logprobs = later.prompt_logprobs
