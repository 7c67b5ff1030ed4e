"""Front end (A) to engine core (B), and back."""

from __future__ import annotations

import enum

import msgspec

from headrace.contracts.model_runner import TokenLogprobs
from headrace.contracts.sampling_params import SamplingParams
from headrace.contracts.stats import SchedulerStats

PROTOCOL_VERSION = 1  # compared in the handshake; raised when a struct changes other than by appending


class EngineCoreRequestType(bytes, enum.Enum):
    """The first frame of each message from A to B: what the second frame holds."""

    ADD = b"\x00"  # EngineCoreRequest
    ABORT = b"\x01"  # list of request ids
    UTILITY = b"\x02"  # UtilityCall
    INIT = b"\x03"  # lifecycle.EngineInit


class FinishReason(enum.IntEnum):
    """Why a request ended. The engine's word is the truth; the front end only translates it."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3

    @property
    def text(self) -> str:
        """The word that the OpenAI API uses."""
        return _FINISH_REASON_TEXT[self]


_FINISH_REASON_TEXT = ("stop", "length", "abort", "error")


class EngineCoreRequest(msgspec.Struct, array_like=True, gc=False):
    """One sequence to be continued. One-shot: the engine core's `Request` is the authority once it has arrived.

    `output_token_ids` is what the client has already had: empty for a new request. A request that has some enters
    exactly as one that was preempted. `sampling_params` come from `SamplingParams.for_core`: seed, length decided.
    """

    request_id: str
    client_index: int
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    sampling_params: SamplingParams
    arrival_time: float  # seconds, time.time() of the front end
    priority: int = 0
    cache_salt: str | None = None


class UtilityCall(msgspec.Struct, array_like=True, gc=False):
    """A call of one method out of the closed table in `core.engine_core`; answered by `UtilityOutput`."""

    call_id: int
    client_index: int
    method: str


class UtilityOutput(msgspec.Struct, array_like=True, gc=False):
    call_id: int
    failure_message: str | None = None
    result: bool | int | str | None = None


class EngineCoreEventType(enum.IntEnum):
    QUEUED = 0
    SCHEDULED = 1  # started, or returned after a preemption
    PREEMPTED = 2


class EngineCoreEvent(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Something that happened to a request. `timestamp` is time.time() of the engine core, in seconds."""

    type: EngineCoreEventType
    timestamp: float


class EngineCoreOutput(msgspec.Struct, array_like=True, gc=False):
    """What one step did for one request. `first_index` is the place of the first new token in the whole output."""

    request_id: str
    first_index: int
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None  # the stop token id that ended it, None for end-of-sequence
    num_cached_tokens: int = 0  # prompt tokens that the prefix cache had; said with the first token
    error_message: str | None = None  # with finish_reason ERROR: what the client may read
    error_code: str | None = None  # and the code of the RequestError that refused it, None for a fault of ours
    events: list[EngineCoreEvent] | None = None  # since the request's last output
    new_logprobs: list[TokenLogprobs] | None = None  # one for each new token, where the request wants them
    prompt_logprobs: list[TokenLogprobs] | None = (
        None  # of the prompt from its second token on; said with the first new
    )


class EngineCoreOutputs(msgspec.Struct, array_like=True, gc=False):
    """Everything that one step has for one client. Outputs of an older `incarnation` are dropped by the client."""

    engine_index: int
    incarnation: int
    outputs: list[EngineCoreOutput]
    scheduler_stats: SchedulerStats | None = None
    timestamp: float = 0.0  # seconds, time.time() of the engine core
    utility_output: UtilityOutput | None = None
