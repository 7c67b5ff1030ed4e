"""The control channel: a socket pair between the launcher and one child.

It carries the child's configuration in, its phases and its readiness out, and orders to drain. And it is the death
pipe: the kernel closes a dead process's end, so the other side reads end-of-file, whatever killed it.

Frames: four bytes of length, little-endian, then MessagePack.
"""

from __future__ import annotations

import socket
import struct
import threading

from headrace.errors import ProtocolError

_LENGTH = struct.Struct("<I")
MAX_FRAME_BYTES = 16 * 2**20


class ControlChannel:
    """One end. `send` may be called from any thread, `receive` from one."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._send_lock = threading.Lock()

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, frame: bytes) -> bool:
        """Send one frame. False if the other side is gone."""
        try:
            with self._send_lock:
                self._sock.sendall(_LENGTH.pack(len(frame)) + frame)
        except OSError:
            return False
        return True

    def receive(self) -> bytes | None:
        """Wait for the next frame. None at end-of-file: the other side is gone."""
        header = self._receive_exactly(_LENGTH.size)
        if header is None:
            return None
        (length,) = _LENGTH.unpack(header)
        if length > MAX_FRAME_BYTES:
            raise ProtocolError(f"a control frame of {length} bytes")
        return self._receive_exactly(length)

    def close(self) -> None:
        self._sock.close()

    def _receive_exactly(self, length: int) -> bytes | None:
        data = bytearray()
        while len(data) < length:
            try:
                part = self._sock.recv(length - len(data))
            except ConnectionError:
                return None
            if not part:
                return None
            data += part
        return bytes(data)


def channel_pair() -> tuple[ControlChannel, socket.socket]:
    """The launcher's end, and the socket that the child inherits."""
    ours, theirs = socket.socketpair()
    return ControlChannel(ours), theirs
