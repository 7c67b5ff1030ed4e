"""Life and death: the handshake between A and B, and what children and launcher tell each other.

Handshake on A's input socket: B sends `EngineHello` as soon as it runs, A answers `EngineInit`, B sends
`EngineCoreReadyResponse` when its model is loaded. Beside it, each child has a control channel to the launcher.
"""

from __future__ import annotations

import msgspec


class EngineHello(msgspec.Struct, array_like=True, gc=False, tag="hello"):
    protocol_version: int
    engine_index: int
    incarnation: int  # drawn anew each time an engine core starts


class Endpoint(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A socket to connect to. `server_key` (CURVE, Z85) comes with TCP."""

    address: str
    server_key: str | None = None


class EngineInit(msgspec.Struct, array_like=True, gc=False):
    """A to B: where this client listens for outputs."""

    client_index: int
    outputs: Endpoint


class EngineCoreReadyResponse(msgspec.Struct, array_like=True, gc=False, tag="ready"):
    """What only the engine core could find out."""

    engine_index: int
    incarnation: int
    num_kv_blocks: int
    block_size: int
    max_model_len: int


EngineHandshake = EngineHello | EngineCoreReadyResponse


class Phase(msgspec.Struct, array_like=True, gc=False, tag="phase"):
    """Child to launcher: a phase of the start is over. `began` and `ended` are time.monotonic() seconds."""

    process: str
    name: str
    began: float
    ended: float


class Report(msgspec.Struct, array_like=True, gc=False, tag="report"):
    """Child to launcher: lines for the operator (the memory plan)."""

    text: str


class ChildReady(msgspec.Struct, array_like=True, gc=False, tag="child_ready"):
    """Child to launcher: this process does its work from now on."""


class ChildFailed(msgspec.Struct, array_like=True, gc=False, tag="child_failed"):
    """Child to launcher, its last word: the root cause of its end."""

    message: str


class Listening(msgspec.Struct, array_like=True, gc=False, tag="listening"):
    """API server to launcher: engine cores reach this front end here."""

    endpoint: Endpoint


ChildMessage = Phase | Report | ChildReady | ChildFailed | Listening


class Drain(msgspec.Struct, array_like=True, gc=False, tag="drain"):
    """Launcher to child: take nothing new, finish what runs within `timeout` seconds (None: however long), exit 0."""

    timeout: float | None = None


class PeerDied(msgspec.Struct, array_like=True, gc=False, tag="peer_died"):
    """Launcher to child: another process of the server is gone."""

    message: str


class ConnectTo(msgspec.Struct, array_like=True, gc=False, tag="connect_to"):
    """Launcher to engine core: a front end is there."""

    endpoint: Endpoint


LauncherMessage = Drain | PeerDied | ConnectTo
