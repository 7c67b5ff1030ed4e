"""A Hugging Face hub on loopback: its API, its files with hashes and ranges, its store of large files, its errors."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE_BYTES = 50_000  # from here on a file lies in the store, and the hub redirects to it


@dataclass
class Repository:
    files: dict[str, bytes]
    commit: str = "a" * 40
    revisions: dict[str, str] = field(default_factory=dict)  # more names of commits; `main` is always one
    token: str | None = None  # who has none of it does not see the repository
    is_gated: bool = False  # its files, for everybody
    extra_names: tuple[str, ...] = ()  # that the API lists beside the files


@dataclass
class Request:
    method: str
    server: str  # "hub" or "store"
    path: str
    headers: dict[str, str]


class FakeHub:
    """`url` is for HF_ENDPOINT. Every request is in `requests`."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Request] = []
        self.refused_token: str | None = None
        self.status: int | None = None  # the answer to everything, instead
        self.cut_after: dict[str, int] = {}  # file -> bytes, after which the connection is cut, once
        self.stall_after: dict[str, int] = {}  # file -> bytes, after which nothing more comes
        self.corrupts: set[str] = set()  # files that are sent with another content
        self._closed = threading.Event()
        self._servers = {name: self._start(name) for name in ("hub", "store")}
        self.url, self._store_url = (
            f"http://127.0.0.1:{self._servers[name].server_address[1]}" for name in ("hub", "store")
        )

    def _start(self, name: str) -> ThreadingHTTPServer:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self, name)

            def do_HEAD(self) -> None:
                hub.answer(self, name)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    def close(self) -> None:
        self._closed.set()
        for server in self._servers.values():
            server.shutdown()
            server.server_close()

    def of_file(self, name: str, method: str = "GET") -> list[Request]:
        return [request for request in self.requests if request.method == method and request.path.endswith(f"/{name}")]

    # ---- answers -----------------------------------------------------------------------------------------------------

    def answer(self, handler: BaseHTTPRequestHandler, server: str) -> None:
        path = unquote(urlsplit(handler.path).path)
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append(Request(handler.command, server, path, headers))
        if self.status is not None:
            reply(handler, self.status)
        elif server == "store":
            name, file = re.fullmatch(r"/store/([^/]+/[^/]+)/(.+)", path).groups()
            self._send_file(handler, file, self.repositories[name].files[file], {})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self._describe(handler, headers, *found.groups())
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(handler, headers, *found.groups())
        else:
            reply(handler, 404)

    def _repository(
        self, handler: BaseHTTPRequestHandler, headers: dict[str, str], name: str, revision: str
    ) -> Repository | None:
        """The repository if this request may see it; else it has its answer."""
        token = headers.get("authorization", "").removeprefix("Bearer ")
        repository = self.repositories.get(name)
        if token and token == self.refused_token:
            reply(handler, 401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repository is None or (repository.token is not None and token != repository.token):
            reply(handler, 401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif revision not in {"main": "", repository.commit: ""} | repository.revisions:
            reply(handler, 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": f"Invalid rev id: {revision}"})
        else:
            return repository
        return None

    def _describe(self, handler: BaseHTTPRequestHandler, headers: dict[str, str], name: str, revision: str) -> None:
        repository = self._repository(handler, headers, name, revision)
        if repository is not None:
            siblings = [{"rfilename": file} for file in [*repository.files, *repository.extra_names]]
            body = {"id": name, "modelId": name, "sha": repository.commit, "siblings": siblings, "tags": []}
            reply(handler, 200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def _resolve(
        self, handler: BaseHTTPRequestHandler, headers: dict[str, str], name: str, revision: str, file: str
    ) -> None:
        repository = self._repository(handler, headers, name, revision)
        if repository is None:
            return
        commit = {"X-Repo-Commit": repository.commit}
        if repository.is_gated:
            reply(handler, 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted"})
        elif file not in repository.files:
            reply(handler, 404, commit | {"X-Error-Code": "EntryNotFound"})
        elif len(content := repository.files[file]) >= LARGE_BYTES:
            linked = {"X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Linked-Size": str(len(content))}
            reply(handler, 302, commit | linked | {"Location": f"{self._store_url}/store/{name}/{file}"})
        else:
            git_hash = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
            self._send_file(handler, file, content, commit | {"ETag": f'"{git_hash}"'})

    def _send_file(self, handler: BaseHTTPRequestHandler, file: str, content: bytes, more: dict[str, str]) -> None:
        if file in self.corrupts:
            content = bytes(len(content))
        wished = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range") or "")
        first = int(wished[1]) if wished else 0
        head = {"Content-Length": str(len(content) - first), "Accept-Ranges": "bytes"}
        if wished:
            head["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        handler.send_response(206 if wished else 200)
        for name, value in (more | head).items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "HEAD":
            return
        end = first + min(self.cut_after.get(file, len(content)), self.stall_after.get(file, len(content)))
        handler.wfile.write(content[first:end])
        handler.wfile.flush()
        if self.cut_after.pop(file, None) is not None:
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
        elif file in self.stall_after:
            self._closed.wait()


def reply(
    handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str] | None = None, body: bytes = b""
) -> None:
    handler.send_response(status)
    for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)
