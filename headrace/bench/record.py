"""One request, as it was measured. All times are seconds of one clock, `time.perf_counter`."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct):
    """A request that has failed has an `error`, and counts as nothing else: none of its times means anything then."""

    arrival: float  # when it was to be sent; latencies count from here
    sent: float  # when it was sent
    text_times: list[float] = msgspec.field(default_factory=list)  # when news of the answer came, one for each event
    finished: float = 0.0  # when the end of the answer came, with its finish reason
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # of the prompt, those that the server had not to compute
    num_output_tokens: int = 0
    num_wanted_tokens: int = 0  # as many were asked for
    finish_reason: str | None = None
    status: int = 0  # of HTTP; 0: there was none
    error: str | None = None

    @property
    def is_completed(self) -> bool:
        return self.error is None

    @property
    def ttft(self) -> float:
        """Time to first token: from the arrival to the first news of the answer."""
        return self.text_times[0] - self.arrival

    @property
    def e2el(self) -> float:
        """End to end latency: from the arrival to the end of the answer."""
        return self.finished - self.arrival

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None where there is no other."""
        if self.num_output_tokens < 2:
            return None
        return (self.finished - self.text_times[0]) / (self.num_output_tokens - 1)

    @property
    def itls(self) -> list[float]:
        """Inter-token latencies: between one event with news and the next. Events that came together are 0 apart."""
        return [later - earlier for earlier, later in zip(self.text_times, self.text_times[1:], strict=False)]
