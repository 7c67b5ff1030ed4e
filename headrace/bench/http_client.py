"""HTTP/1.1 for measuring: what comes is handed on with the time at which the socket had it.

httptools parses, and nothing stands between it and the event loop's read: no buffering reader, no line iterator, whose
consumers would stamp a token with the time at which they got to it. Connections are kept for the next request.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

import httptools
import msgspec

from headrace.errors import ConfigError


class ExchangeError(Exception):
    """A request got no whole answer. The message says why."""


class Receiver(Protocol):
    """Takes an answer in. `now` is when the bytes came."""

    def on_status(self, status: int, content_type: str) -> None: ...

    def on_body(self, data: bytes, now: float) -> None: ...


class Address(msgspec.Struct, frozen=True):
    """Where the server is. `prefix` comes before every path."""

    host: str
    port: int
    prefix: str
    uses_tls: bool

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.uses_tls else 80) else f"{host}:{self.port}"


def parse_url(url: str) -> Address:
    """Of `http://127.0.0.1:8000`; a `/v1` at its end is that of the paths. Raises `ConfigError`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"{url!r} is no address; write http://127.0.0.1:8000", flag="--base-url") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError("it must be an address such as http://127.0.0.1:8000", flag="--base-url")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("no user or password can be in it; a key goes into HEADRACE_API_KEY", flag="--base-url")
    uses_tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Address(parts.hostname, port or (443 if uses_tls else 80), prefix, uses_tls)


class HTTPClient:
    """Requests to one server. `api_key` is sent as a bearer token and shown nowhere."""

    def __init__(
        self, address: Address, api_key: str | None = None, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._address = address
        self._now = now
        self._idle: list[_Connection] = []
        self._tls = ssl.create_default_context() if address.uses_tls else None
        headers = [f"Host: {address.host_header}", "Accept: */*", "User-Agent: headrace-bench"]
        if api_key is not None:
            headers.append(f"Authorization: Bearer {api_key}")
        self._headers = "".join(f"{line}\r\n" for line in headers)

    async def exchange(self, method: str, path: str, body: bytes | None, receiver: Receiver) -> None:
        """Send a request, and feed the answer to `receiver` as it comes. Returns at its end, which is also where the
        server closes the connection: whether that was all is for the receiver to say.

        Raises `ExchangeError` where no answer comes, or none that is HTTP."""
        length = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        request = f"{method} {self._address.prefix}{path} HTTP/1.1\r\n{self._headers}{length}\r\n".encode() + (
            body or b""
        )
        while self._idle:
            connection = self._idle.pop()
            if await self._try(connection, request, receiver):
                return
            # The server had closed it while it was idle, before it saw the request.
        if not await self._try(await self._connect(), request, receiver):
            raise ExchangeError("the server closed the connection without an answer")

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _try(self, connection: _Connection, request: bytes, receiver: Receiver) -> bool:
        """False: the connection has ended before the first byte of an answer."""
        try:
            await connection.exchange(request, receiver)
        except BaseException:
            connection.close()
            raise
        if connection.can_be_reused:
            self._idle.append(connection)
        return connection.has_answered

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(self._now), self._address.host, self._address.port, ssl=self._tls
            )
        except OSError as error:
            raise ExchangeError(f"no connection: {error.strerror or error}") from None
        return connection


class _Connection(asyncio.Protocol):
    """One connection; one exchange at a time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._is_open = True
        self._receiver: Receiver | None = None
        self._over: asyncio.Future[None] | None = None  # of the exchange under way
        self.has_answered = False
        self.can_be_reused = False

    async def exchange(self, request: bytes, receiver: Receiver) -> None:
        self.has_answered = self.can_be_reused = False
        if not self._is_open:
            return
        self._receiver = receiver
        self._content_type = ""
        self._parser = httptools.HttpResponseParser(self)
        self._over = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._over

    def close(self) -> None:
        self._is_open = False
        self._transport.close()

    # ---- from the event loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read_at = self._now()
        if self._over is None or self._over.done():
            self.close()  # it speaks unasked
            return
        self.has_answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            cause = error.__context__  # what one of the methods below has raised
            self._end(cause if isinstance(cause, ExchangeError) else ExchangeError(f"the answer is no HTTP: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = self.can_be_reused = False
        self._end(None)

    # ---- from the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._content_type = value.decode("latin-1").partition(";")[0].strip().lower()

    def on_headers_complete(self) -> None:
        if self._receiver is not None:
            self._receiver.on_status(self._parser.get_status_code(), self._content_type)

    def on_body(self, data: bytes) -> None:
        if self._receiver is not None:
            self._receiver.on_body(data, self._read_at)

    def on_message_complete(self) -> None:
        self.can_be_reused = self._is_open and self._parser.should_keep_alive()
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._over is not None and not self._over.done():
            if error is None:
                self._over.set_result(None)
            else:
                self._over.set_exception(error)
