"""The process that asks the Hugging Face hub for a model and downloads it. Started by `hub.Download`; see there.

It writes into the cache of the hub's library, in its layout: contents in `blobs`, by their hash, and for each commit a
folder of links to them. The library's own download throws away what it has of a file when it is interrupted, so the
files are fetched here; the library knows the hub's addresses, tokens and errors. A name or a hash from the hub becomes
a path only when it is known to stay in its folder, and content counts only when its hash is right.

The token goes to the hub alone, and never into a message.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit

import msgspec

from headrace.errors import ModelFormatError
from headrace.formats.hf_config import CONFIG_FILE, GENERATION_CONFIG_FILE
from headrace.formats.hub import (
    MODEL_FLAG,
    REVISION_FLAG,
    DownloadReply,
    DownloadRequest,
    HubError,
    choose_gguf,
    repository_folder,
    weight_files,
)
from headrace.formats.safetensors import INDEX_FILE, SINGLE_FILE

QUESTION_S = 10.0  # for an answer of the hub
READ_S = 15.0  # for more of a file
MAX_TRIES = 5  # of a file, without a byte more
PAUSE_S = 1.0  # before another try
CHUNK_BYTES = 2**20
LINES_OF_PROGRESS = 10  # where stderr is no terminal
LEAST_BYTES_SHOWN = 100_000

_SMALL_FILES = (
    CONFIG_FILE, GENERATION_CONFIG_FILE, "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
    "chat_template.jinja",
)  # fmt: skip
_SAFE_PART = re.compile(r"[^/\\\x00-\x1f]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_URL_PASSWORD = re.compile(r"//[^/@\s]*@")
_HASH = re.compile(r"[0-9A-Za-z_-]+")


def main() -> None:
    request = msgspec.json.decode(sys.argv[1], type=DownloadRequest)
    go_on = threading.Event()
    threading.Thread(target=_watch_parent, args=(go_on,), daemon=True).start()
    for reply in _replies(request, go_on):
        sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
        sys.stdout.flush()


def _watch_parent(go_on: threading.Event) -> None:
    """A line is the word to go on; the end of the file is the end of the parent."""
    while os.read(0, 1):
        go_on.set()
    os._exit(1)


def _replies(request: DownloadRequest, go_on: threading.Event) -> Iterator[DownloadReply]:
    from huggingface_hub import get_token

    def error(message: str, flag: str | None, *, is_out_of_reach: bool = False) -> DownloadReply:
        token = get_token()
        if token:
            message = message.replace(token, "***")
        message = _URL_PASSWORD.sub("//", message)
        return DownloadReply(error=message, flag=flag, is_out_of_reach=is_out_of_reach)

    try:
        yield from _download(request, go_on)
    except HubError as failure:
        yield error(failure.message, failure.flag)
    except ModelFormatError as failure:
        yield error(failure.message, MODEL_FLAG)
    except OutOfReachError as failure:
        yield error(str(failure), MODEL_FLAG, is_out_of_reach=True)
    except OSError as failure:
        yield error(disk_error(failure, request), MODEL_FLAG)
    except Exception as failure:  # an answer that the library does not understand, mostly
        yield error(f"{request.model} cannot be downloaded: {type(failure).__name__}: {failure}", MODEL_FLAG)


class OutOfReachError(Exception):
    """The hub does not answer, or does not let us see the model."""


def _download(request: DownloadRequest, go_on: threading.Event) -> Iterator[DownloadReply]:
    repository = Repository(request)
    names = repository.names
    if request.model.wanted is not None or not {SINGLE_FILE, INDEX_FILE} & set(names):
        name = choose_gguf(request.model, names)
        repository.fetch([name])
        repository.remember()
        yield DownloadReply(str(repository.snapshot / name))
        return
    if CONFIG_FILE not in names:
        raise HubError(f"{request.model.repository} has no {CONFIG_FILE}, so it is no model that headrace can read")
    small = [name for name in names if name in _SMALL_FILES]
    if "tokenizer.json" in small and "tokenizer.model" in small:
        small.remove("tokenizer.model")  # the same tokenizer, which is read only where the other is missing
    repository.fetch(small)
    yield DownloadReply(str(repository.snapshot), is_complete=False)
    go_on.wait()
    if INDEX_FILE in names:
        repository.fetch([INDEX_FILE])
    weights = weight_files(repository.snapshot)
    missing = sorted(set(weights) - set(names))
    if missing:
        raise HubError(f"{request.model.repository}: its {INDEX_FILE} names {missing[0]!r}, which there is not")
    repository.fetch(weights)
    repository.remember()
    yield DownloadReply(str(repository.snapshot))


class Repository:
    """One commit of a model on the hub, and its place in the cache."""

    def __init__(self, request: DownloadRequest) -> None:
        """Ask the hub for the revision's commit and its files. Raises `HubError` or `OutOfReachError`."""
        self._model = request.model
        self._repository = request.model.repository
        info = self._ask(request.check_s or QUESTION_S)
        self.names = [entry.rfilename for entry in info.siblings]
        for name in self.names:
            check_file_name(name)
        if not _COMMIT.fullmatch(info.sha):
            raise HubError(f"the hub gives {info.sha!r} as the commit of {self._repository}, which is none")
        self._commit = info.sha
        self._folder = repository_folder(Path(request.cache), self._repository)
        self.snapshot = self._folder / "snapshots" / self._commit

    def fetch(self, names: Sequence[str]) -> None:
        """Have these files in the snapshot. Raises `HubError`, `OutOfReachError` or `OSError`."""
        absent = [name for name in names if not (self.snapshot / name).is_file()]
        files = [self._describe(name) for name in absent]
        blobs = self._folder / "blobs"
        blobs.mkdir(parents=True, exist_ok=True)
        check_space(blobs, sum(file.size - size_of(partial_path(blobs / file.hash)) for file in files))
        with Progress(self._repository, sum(file.size for file in files)) as progress:
            for file in files:
                blob = blobs / file.hash
                if blob.is_file():
                    progress.add(file.size)
                else:
                    self._fetch_blob(file, blob, progress)
                link(self.snapshot / file.name, blob)

    def remember(self) -> None:
        """The revision is this commit, all of which is here."""
        if self._model.revision != self._commit:
            ref = self._folder / "refs" / self._model.revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            new = ref.with_name(f"{ref.name}.{os.getpid()}")
            new.write_text(self._commit)
            new.replace(ref)

    def _ask(self, seconds: float) -> ModelInfo:
        """The library has a method for this, in a module that takes a fifth of a second to import."""
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        url = f"{_endpoint()}/api/models/{self._repository}/revision/{quote(self._model.revision, safe='')}"
        with self._asking():
            response = get_session().get(url, headers=build_hf_headers(library_name="headrace"), timeout=seconds)
            hf_raise_for_status(response)
        try:
            return msgspec.json.decode(response.content, type=ModelInfo)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise OutOfReachError(f"{_endpoint()} does not answer as a Hugging Face hub does") from None

    def _describe(self, name: str) -> HubFile:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        url = hf_hub_url(self._repository, name, revision=self._commit)
        headers = build_hf_headers(library_name="headrace")
        with self._asking():
            found = get_hf_file_metadata(url, timeout=QUESTION_S, headers=headers)
        if found.size is None or not _HASH.fullmatch(found.etag or ""):
            raise HubError(f"the hub does not say how large {self._repository}/{name} is, or what its hash is")
        if urlsplit(found.location).netloc != urlsplit(url).netloc:  # a store of contents: no business of the token
            headers = {key: value for key, value in headers.items() if key.lower() != "authorization"}
        headers["Accept-Encoding"] = "identity"  # the bytes as they are, so that places in them mean something
        return HubFile(name, str(found.etag), found.size, found.location, headers)

    def _fetch_blob(self, file: HubFile, blob: Path, progress: Progress) -> None:
        """Download into a file beside, which stays if this is interrupted, and is gone on with the next time."""
        partial = partial_path(blob)
        with partial.open("ab") as target:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(target, fcntl.LOCK_EX)  # of two processes with the same wish one waits
            if blob.is_file():
                partial.unlink(missing_ok=True)
                progress.add(file.size)
                return
            progress.add(min(target.tell(), file.size))
            self._fetch_rest(file, target, progress)
            if size_of(partial) != file.size or not has_hash(partial, file.hash):
                partial.unlink()
                raise HubError(f"{self._repository}/{file.name} came with other contents than the hub says; try again")
            partial.replace(blob)

    def _fetch_rest(self, file: HubFile, target: IO[bytes], progress: Progress) -> None:
        tries = 0
        while target.tell() < file.size:
            place = target.tell()
            try:
                with self._asking():
                    self._fetch_once(file, target, progress)
            except OutOfReachError:
                tries = 0 if target.tell() > place else tries + 1
                if tries == MAX_TRIES:
                    raise
                time.sleep(PAUSE_S)
            else:
                if target.tell() <= place:
                    raise HubError(f"the hub sends nothing of {self._repository}/{file.name}")

    def _fetch_once(self, file: HubFile, target: IO[bytes], progress: Progress) -> None:
        from huggingface_hub.utils import get_session, hf_raise_for_status  # type: ignore[attr-defined]

        place = target.tell()
        wish = {"Range": f"bytes={place}-"} if place else {}
        with get_session().stream("GET", file.location, headers=file.headers | wish, timeout=READ_S) as response:
            if response.status_code >= 400:
                response.read()
                hf_raise_for_status(response)
            if place and response.status_code != 206:  # all of it instead
                target.seek(0)
                target.truncate()
                progress.add(-place)
            for chunk in response.iter_bytes():  # as they come: whatever breaks this off, what came is kept
                target.write(chunk)
                target.flush()
                progress.add(len(chunk))
                if target.tell() > file.size:
                    raise HubError(f"the hub sends more of {self._repository}/{file.name} than it says")

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Turns what the library raises into our errors."""
        from huggingface_hub import errors

        name, flag = self._repository, MODEL_FLAG
        try:
            yield
        except errors.GatedRepoError:
            raise OutOfReachError(
                f"{name} is gated: accept its conditions at {_endpoint()}/{name}, and set HF_TOKEN to a token of the "
                "account that has"
            ) from None
        except errors.RepositoryNotFoundError:
            raise OutOfReachError(
                f"there is neither a file or folder {name!r} here nor a model of that name on {_endpoint()}; or it is "
                "private, and HF_TOKEN must be a token that may read it"
            ) from None
        except errors.RevisionNotFoundError:
            message = f"{name} has no branch, tag or commit {self._model.revision!r}"
            raise HubError(message, REVISION_FLAG) from None
        except errors.HfHubHTTPError as error:
            status = error.response.status_code
            if status == 401:
                raise OutOfReachError(
                    f"{_endpoint()} does not accept the token in HF_TOKEN, or the one that `hf auth login` has saved"
                ) from None
            message = f"{_endpoint()} answers with status {status}, asked for {name}"
            raise (OutOfReachError(message) if status >= 429 or status == 403 else HubError(message, flag)) from None
        except errors.HTTPError as error:  # type: ignore[attr-defined]  # the root of the HTTP library's errors
            reason = str(error)
            if not reason or "Bearer" in reason:  # a header that cannot be sent, with the token in it
                reason = type(error).__name__
            raise OutOfReachError(f"{_endpoint()} cannot be reached for {name}: {reason}") from None


class HubFileName(msgspec.Struct, frozen=True):
    rfilename: str


class ModelInfo(msgspec.Struct, frozen=True):
    """Of what the hub says about a model."""

    sha: str
    siblings: list[HubFileName] = []


class HubFile(msgspec.Struct, frozen=True):
    name: str
    hash: str  # the name of its blob
    size: int
    location: str
    headers: dict[str, str]


class Progress:
    """On stderr: a bar if that is a terminal, else some lines. Nothing of a few small files."""

    def __init__(self, name: str, size: int) -> None:
        size = size if size >= LEAST_BYTES_SHOWN else 0
        self._name, self._size, self._done, self._lines = name, size, 0, 0
        self._bar: Any = None
        if size and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=size, desc=name, unit="B", unit_scale=True, dynamic_ncols=True)
        elif size:
            self._say(f"downloading {name}, {megabytes(size)}")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, num_bytes: int) -> None:
        self._done += num_bytes
        if self._bar is not None:
            self._bar.update(num_bytes)
        elif self._done * LINES_OF_PROGRESS >= (self._lines + 1) * self._size > 0:
            self._lines = self._done * LINES_OF_PROGRESS // self._size
            self._say(f"{self._name}: {megabytes(self._done)} of {megabytes(self._size)}")

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it any more
            sys.stderr.write(f"headrace: {line}\n")
            sys.stderr.flush()


def check_file_name(name: str) -> None:
    """Raises `HubError` for one that would lead out of its folder."""
    parts = name.split("/")
    if not all(_SAFE_PART.fullmatch(part) and part not in (".", "..") for part in parts):
        raise HubError(f"the repository has a file with the name {name!r}, which is not one to be saved under")


def check_space(folder: Path, num_bytes: int) -> None:
    """Raises the `OSError` that writing so much would end with."""
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    if num_bytes > free:
        raise OSError(errno.ENOSPC, f"{num_bytes / 1e9:.1f} GB are needed, and {free / 1e9:.1f} GB are free")


def partial_path(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.headrace-partial")


def size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def has_hash(path: Path, expected: str) -> bool:
    """Whether the content is what the hub calls it by: SHA-256 of large files, git's SHA-1 of others. Another kind of
    name says nothing."""
    if len(expected) == 64:
        digest = hashlib.sha256()
    elif len(expected) == 40:
        digest = hashlib.sha1(b"blob %d\0" % size_of(path), usedforsecurity=False)
    else:
        return True
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest() == expected


def link(path: Path, blob: Path) -> None:
    """Let `path` be the blob: a relative link, or the file itself on a file system without links."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # a link to a blob that is gone
    try:
        path.symlink_to(os.path.relpath(blob, path.parent))
    except OSError:
        blob.replace(path)


def megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"


def disk_error(error: OSError, request: DownloadRequest) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason = f"the disk is full ({error.strerror})"
    else:
        reason = str(error)
    return f"{request.model} cannot be saved in {request.cache}: {reason}. HF_HOME names another place"


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT
