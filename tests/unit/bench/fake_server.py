"""A server that answers by a script: which bytes, and what the clock says when the client reads them.

The clock is the test's. After each piece the server waits until the client has looked at the clock, so every piece is a
read of its own, however busy the machine is, and its time is exactly known.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.bench.http_client import HTTPClient, parse_url

T = TypeVar("T")
Piece = tuple[float, bytes]

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


def event(data: object) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n\n".encode()


def text(words: str | None, finish_reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": words, "finish_reason": finish_reason}], "usage": None})


def delta(finish_reason: str | None = None, **fields: str | None) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]})


def usage(**more: object) -> bytes:
    return event({"choices": [], "usage": USAGE | more})


DONE = event("[DONE]")
END = b"0\r\n\r\n"


def chunk(*events: bytes) -> bytes:
    """Of a chunked body."""
    data = b"".join(events)
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def error(status: int, body: object) -> bytes:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} No\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


class Clock:
    """Says what the server has set, and counts who asks."""

    def __init__(self) -> None:
        self.time = 0.0
        self.num_looks = 0

    def __call__(self) -> float:
        self.num_looks += 1
        return self.time


class FakeServer:
    """Answers the n-th request with the n-th script. `hangs_up`: closes the connection after these (0 is the first)."""

    def __init__(self, *scripts: list[Piece], hangs_up: tuple[int, ...] = ()) -> None:
        self.scripts = scripts
        self.hangs_up = hangs_up
        self.clock = Clock()
        self.requests: list[bytes] = []
        self.num_connections = 0

    def run(self, work: Callable[[HTTPClient], Awaitable[T]], api_key: str | None = None) -> T:
        async def serve_and_work() -> T:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            http = HTTPClient(parse_url(f"http://127.0.0.1:{port}"), api_key, self.clock)
            try:
                return await work(http)
            finally:
                http.close()
                server.close()
                await server.wait_closed()

        return asyncio.run(serve_and_work())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
                place = len(self.requests)
                self.requests.append(head + await reader.readexactly(length))
                for when, data in self.scripts[place]:
                    self.clock.time = when
                    num_looks = self.clock.num_looks
                    writer.write(data)
                    while self.clock.num_looks == num_looks:
                        await asyncio.sleep(0)
                if place in self.hangs_up:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()
