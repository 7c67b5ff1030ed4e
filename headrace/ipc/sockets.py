"""ZeroMQ sockets between front ends and engine cores.

Each front end binds two: a ROUTER that its requests leave by, and a PULL where outputs arrive. Engine cores connect.
The addresses are unix sockets in the run's private folder, or loopback TCP with CURVE: there the server's public key,
which travels only over control channels, is the ticket.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import zmq

from headrace.contracts.lifecycle import Endpoint

MAX_MESSAGE_BYTES = 256 * 2**20


class Keys(msgspec.Struct, frozen=True):
    """A CURVE key pair, Z85 text."""

    public: str
    secret: str

    @classmethod
    def generate(cls) -> Keys:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())


def bind(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, run_dir: Path, name: str, keys: Keys | None
) -> tuple[zmq.Socket[bytes], Endpoint]:
    """Bind a socket under a name of this run; with `keys`, on loopback TCP at a free port."""
    sock = _socket(context, kind)
    if keys is None:
        address = f"ipc://{run_dir / name}"
        sock.bind(address)
        return sock, Endpoint(address)
    sock.curve_server = True
    sock.curve_publickey, sock.curve_secretkey = keys.public.encode(), keys.secret.encode()
    sock.bind("tcp://127.0.0.1:*")
    return sock, Endpoint(sock.get_string(zmq.LAST_ENDPOINT), keys.public)


def connect(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: Endpoint, identity: bytes | None = None
) -> zmq.Socket[bytes]:
    sock = _socket(context, kind)
    if identity is not None:
        sock.identity = identity
    if endpoint.server_key is not None:
        sock.curve_publickey, sock.curve_secretkey = zmq.curve_keypair()
        sock.curve_serverkey = endpoint.server_key.encode()
    sock.connect(endpoint.address)
    return sock


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """No high-water mark: a message between our processes is never dropped, and no sender ever waits in a step."""
    sock = context.socket(kind)
    sock.sndhwm = sock.rcvhwm = 0
    sock.linger = 0
    sock.maxmsgsize = MAX_MESSAGE_BYTES
    return sock
