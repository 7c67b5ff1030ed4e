"""One encoder and one decoder for each kind of message, made once. Bytes that do not fit raise `ProtocolError`."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from headrace.contracts.engine import EngineCoreOutputs, EngineCoreRequest, UtilityCall
from headrace.contracts.lifecycle import ChildMessage, EngineHandshake, EngineInit, LauncherMessage
from headrace.errors import ProtocolError

T = TypeVar("T")


class Codec(Generic[T]):
    """MessagePack for one type. Not shared between threads: each side of a channel makes its own."""

    def __init__(self, kind: object) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)

    def encode(self, message: T) -> bytes:
        return self._encoder.encode(message)

    def decode(self, data: bytes | memoryview) -> T:
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"a peer sent {len(data)} bytes that are no message of ours: {error}") from None


def request_codec() -> Codec[EngineCoreRequest]:
    return Codec(EngineCoreRequest)


def abort_codec() -> Codec[list[str]]:
    return Codec(list[str])


def utility_codec() -> Codec[UtilityCall]:
    return Codec(UtilityCall)


def init_codec() -> Codec[EngineInit]:
    return Codec(EngineInit)


def outputs_codec() -> Codec[EngineCoreOutputs]:
    return Codec(EngineCoreOutputs)


def handshake_codec() -> Codec[EngineHandshake]:
    return Codec(EngineHandshake)


def child_message_codec() -> Codec[ChildMessage]:
    return Codec(ChildMessage)


def launcher_message_codec() -> Codec[LauncherMessage]:
    return Codec(LauncherMessage)
