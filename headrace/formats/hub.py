"""Models by their name on the Hugging Face hub: what a name means, what of it is on this machine, and the download.

    org/name                the repository's safetensors model; of a repository with one GGUF file, that
    org/name:Q8_0           of a repository of GGUF files, the one in this quantisation
    org/name:FILE.gguf      the one with this name

The download runs in a process of its own (`hub_download.py`), which ends with it: the hub's library is large, and no
process that stays has any use for it. The cache is the library's, in its layout, so that other programs share it.

A model that is complete in the cache is used at once if the hub must not be asked (HF_HUB_OFFLINE) or has nothing to
say (a revision that is a commit). Else the hub is asked once for the revision's commit, for `CHECK_S` seconds, and
where it does not answer the cache is used.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, cast

import msgspec

from headrace.errors import ConfigError, ModelFormatError
from headrace.formats.hf_config import CONFIG_FILE
from headrace.formats.json_file import read_json_object
from headrace.formats.safetensors import INDEX_FILE, SINGLE_FILE

CHECK_S = 3.0  # for the hub's word on a model that is here already
MODEL_FLAG, REVISION_FLAG = "--model", "--revision"
DEFAULT_REVISION = "main"

_REPOSITORY = re.compile(r"[A-Za-z0-9](?:[\w.-]*\w)?/[A-Za-z0-9](?:[\w.-]*\w)?", re.ASCII)
_REVISION = re.compile(r"[\w.-]+(?:/[\w.-]+)*", re.ASCII)
_WANTED = re.compile(r"[\w.-]+(?:/[\w.-]+)*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.gguf", re.IGNORECASE)
_MOST_NAMES = 20  # in a message

PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])
_START = "import sys; sys.path[:0] = sys.argv[2:]; from headrace.formats.hub_download import main; main()"


class HubModel(msgspec.Struct, frozen=True):
    repository: str  # org/name
    wanted: str | None = None  # a GGUF file's name, or a quantisation
    revision: str = DEFAULT_REVISION  # a branch, a tag or a commit

    def __str__(self) -> str:
        return self.repository + (f":{self.wanted}" if self.wanted else "")


class DownloadRequest(msgspec.Struct, frozen=True):
    """To the process that downloads, as JSON on its command line."""

    model: HubModel
    cache: str  # the folder with the repositories
    check_s: float | None  # seconds for the first question, where there is a model to fall back on


class DownloadReply(msgspec.Struct, frozen=True):
    """From it, as a line of JSON. The first one of a safetensors model comes before its weights: `is_complete` is
    false, and it goes on when a line is written to it."""

    path: str | None = None
    is_complete: bool = True
    error: str | None = None
    flag: str | None = None
    is_out_of_reach: bool = False  # with an error: it says nothing about what is in the cache


class HubError(Exception):
    """The message is for the user; `flag` is what to change."""

    def __init__(self, message: str, flag: str | None = MODEL_FLAG) -> None:
        super().__init__(message)
        self.message = message
        self.flag = flag


def parse_hub_name(name: str, revision: str | None) -> HubModel | None:
    """None if this cannot be a name on the hub. Raises `ConfigError` for a revision that cannot be one."""
    repository, colon, wanted = name.partition(":")
    if not _REPOSITORY.fullmatch(repository) or repository.endswith(".gguf") or ".." in name:
        return None
    if colon and not _WANTED.fullmatch(wanted):
        return None
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise ConfigError(f"{revision!r} cannot be a branch, a tag or a commit", flag=REVISION_FLAG)
    return HubModel(repository, wanted or None, revision or DEFAULT_REVISION)


def find_hub_model(model: HubModel, check: Callable[[Path], object]) -> Path | Download:
    """The model's folder or file, where it is known at once; else the search for it, and its download if need be.

    `check` gets the folder of a safetensors model before its weights are downloaded, and raises if they are not worth
    it. Raises `ConfigError`."""
    cache = cache_folder()
    cached = find_in_cache(model, cache)
    if is_offline():
        if cached is None:
            raise ConfigError(
                f"{model} is not in {cache}, or not complete, and HF_HUB_OFFLINE forbids to ask the hub for it",
                flag=MODEL_FLAG,
            )
        return cached
    if cached is not None and _COMMIT.fullmatch(model.revision):
        return cached
    return Download(model, cache, cached, check)


class Download:
    """A process that asks the hub and downloads. Use it as a context: call `wait`; or, whenever `fileno` is readable,
    `take_reply`."""

    def __init__(self, model: HubModel, cache: Path, cached: Path | None, check: Callable[[Path], object]) -> None:
        request = DownloadRequest(model, str(cache), None if cached is None else CHECK_S)
        self._model = model
        self._cached = cached
        self._check = check
        installed = Path(PACKAGE_PARENT).name in ("site-packages", "dist-packages")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, msgspec.json.encode(request).decode()]
            + ([] if installed else [PACKAGE_PARENT]),
            stdin=subprocess.PIPE,  # it ends at the end of this, and so with us
            stdout=subprocess.PIPE,
            env={"HF_HUB_VERBOSITY": "error", "HF_HUB_DISABLE_TELEMETRY": "1"} | os.environ,
            start_new_session=True,  # Ctrl-C is for us
        )
        self._orders, self._replies = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)

    def __enter__(self) -> Download:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the process. What it has of a file stays, and is not downloaded again."""
        with self._process as process:
            process.kill()

    def fileno(self) -> int:
        return self._replies.fileno()

    def take_reply(self) -> Path | None:
        """Wait for its next word. Returns the model's path when that is all, None if there is more to come.

        Raises `ConfigError`, and what `check` raises."""
        line = self._replies.readline()
        if not line:
            raise ConfigError(f"the download of {self._model} ended with status {self._process.wait()}")
        reply = msgspec.json.decode(line, type=DownloadReply)
        if reply.path is None:
            return self._fall_back(reply)
        path = Path(reply.path)
        if reply.is_complete:
            return path
        self._check(path)
        with contextlib.suppress(BrokenPipeError):  # it is gone, as its next word will show
            self._orders.write(b"\n")
            self._orders.flush()
        return None

    def wait(self) -> Path:
        """Until all is there. Raises as `take_reply` does."""
        while (path := self.take_reply()) is None:
            pass
        return path

    def _fall_back(self, reply: DownloadReply) -> Path:
        if self._cached is None or not reply.is_out_of_reach:
            raise ConfigError(reply.error or "the download failed", flag=reply.flag)
        sys.stderr.write(f"headrace: {reply.error}; using {self._model} as it is in the cache: {self._cached}\n")
        sys.stderr.flush()
        return self._cached


# ---- the cache ------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where the hub's library keeps repositories, by the variables that it obeys."""
    environ = os.environ
    home = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    folder = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(folder)).expanduser()


def is_offline() -> bool:
    """By the variables of the hub's library."""
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in ("1", "ON", "YES", "TRUE")


def repository_folder(cache: Path, repository: str) -> Path:
    return cache / f"models--{repository.replace('/', '--')}"


def find_in_cache(model: HubModel, cache: Path) -> Path | None:
    """The model's folder or GGUF file if all of it is there, as of the last time that the hub was asked."""
    folder = repository_folder(cache, model.repository)
    commit = model.revision
    if not _COMMIT.fullmatch(commit):
        try:
            commit = (folder / "refs" / model.revision).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
    snapshot = folder / "snapshots" / commit
    if not _COMMIT.fullmatch(commit) or not snapshot.is_dir():
        return None
    if model.wanted is None and has_all_files(snapshot):
        return snapshot
    names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf") if path.is_file()]
    try:
        return snapshot / choose_gguf(model, names)
    except HubError:
        return None


def has_all_files(snapshot: Path) -> bool:
    """Whether this is a safetensors model with everything that it needs."""
    has_tokenizer = any((snapshot / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))
    if not has_tokenizer or not (snapshot / CONFIG_FILE).is_file():
        return False
    try:
        weights = weight_files(snapshot)
    except ModelFormatError:
        return False
    return all((snapshot / name).is_file() for name in weights)


def weight_files(folder: Path) -> list[str]:
    """The files that the weights are in, by the folder's index; without one, the single file's name."""
    index = folder / INDEX_FILE
    if not index.is_file():
        return [SINGLE_FILE]
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelFormatError(f"{index}: has no 'weight_map'")
    return sorted({str(name) for name in weight_map.values()})


def choose_gguf(model: HubModel, names: Sequence[str]) -> str:
    """Which of a repository's files is meant. Raises `HubError` that lists them if that is not clear."""
    files = sorted(name for name in names if name.lower().endswith(".gguf") and "mmproj" not in name.lower())
    wanted = model.wanted
    if wanted is None:
        found = files
    elif wanted.lower().endswith(".gguf"):
        found = [name for name in files if name == wanted]
    else:
        word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(wanted)}(?![A-Za-z0-9_])", re.IGNORECASE)
        found = [name for name in files if word.search(name)]
    if len(found) == 1:
        if _SHARD.search(found[0]):
            raise HubError(f"{model.repository}: {found[0]} is one of several parts, which are not supported")
        return found[0]
    if not files:
        raise HubError(f"{model.repository} has no GGUF files; it has: {_listed(names)}")
    if wanted is None:
        what = "several GGUF files"
    else:
        what = f"several GGUF files for {wanted!r}" if found else f"no GGUF file {wanted!r}"
    raise HubError(
        f"{model.repository} has {what}; name one of them, as in {model.repository}:{(found or files)[0]}. "
        f"There are: {_listed(found or files)}"
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return (", ".join(sorted(names)[:_MOST_NAMES]) or "nothing") + (f" and {more} more" if more > 0 else "")
