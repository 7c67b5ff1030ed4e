"""Names on the hub, the choice among GGUF files, and the cache; the download itself is in tests/system/test_hub.py."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pytest

from headrace.config.model_files import find_model, is_hub_name
from headrace.errors import ConfigError
from headrace.formats.hub import (
    DownloadRequest,
    HubError,
    HubModel,
    cache_folder,
    choose_gguf,
    find_in_cache,
    is_offline,
    parse_hub_name,
)
from headrace.formats.hub_download import check_file_name, check_space, disk_error, has_hash, link

COMMIT = "0123456789" * 4


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("org/name", HubModel("org/name")),
        ("Qwen/Qwen2.5-0.5B", HubModel("Qwen/Qwen2.5-0.5B")),
        ("org/name-GGUF:Q4_K_M", HubModel("org/name-GGUF", "Q4_K_M")),
        ("org/name:sub/file-Q8_0.gguf", HubModel("org/name", "sub/file-Q8_0.gguf")),
        ("org/name:", None),
        ("org/name:../x.gguf", None),
        ("name", None),
        ("a/b/c", None),
        ("./org/name", None),
        ("/org/name", None),
        ("~/name", None),
        ("../name", None),
        ("models/file.gguf", None),
        ("org/..", None),
        ("org/na me", None),
        ("org/-name", None),
        ("", None),
    ],
)
def test_names(name, model):
    assert parse_hub_name(name, None) == model


def test_what_is_here_goes_before_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_hub_name("org/name")
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    assert not is_hub_name("org/name")
    assert find_model("org/name") == folder
    with pytest.raises(ConfigError, match="--revision"):
        find_model("org/name", "main")
    with pytest.raises(ConfigError, match="ORGANISATION/NAME"):
        find_model("gpt2")


FILES = ["a/m.UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-iq4_xs.gguf", "m_Q8_0.gguf", "mmproj-m-F16.gguf"]


@pytest.mark.parametrize(
    ("wanted", "file"),
    [
        ("Q4_K_M", "m-Q4_K_M.gguf"),
        ("q4_k_s", "m-Q4_K_S.gguf"),
        ("IQ4_XS", "m-iq4_xs.gguf"),
        ("Q4_K_XL", "a/m.UD-Q4_K_XL.gguf"),
        ("Q8_0", "m_Q8_0.gguf"),
        ("a/m.UD-Q4_K_XL.gguf", "a/m.UD-Q4_K_XL.gguf"),
    ],
)
def test_a_gguf_file_is_found_by_its_quantisation(wanted, file):
    assert choose_gguf(HubModel("o/n", wanted), FILES) == file


@pytest.mark.parametrize(
    ("wanted", "names", "words"),
    [
        ("Q4_K", FILES, "no GGUF file 'Q4_K'"),
        ("F16", FILES, "no GGUF file 'F16'"),
        ("other.gguf", FILES, "m_Q8_0.gguf"),
        (None, FILES, "several GGUF files; name one"),
        ("Q8_0", ["a-Q8_0.gguf", "b-Q8_0.gguf"], "o/n:a-Q8_0.gguf"),
        ("Q8_0", ["model.bin"], "model.bin"),
        (None, [], "nothing"),
        (None, ["m-00001-of-00002.gguf"], "several parts"),
        (None, [f"{i}.gguf" for i in range(30)], "and 10 more"),
    ],
)
def test_a_choice_that_is_not_clear_lists_what_there_is(wanted, names, words):
    with pytest.raises(HubError) as caught:
        choose_gguf(HubModel("o/n", wanted), names)
    assert words in caught.value.message
    assert "mmproj" not in caught.value.message


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, "/home/u/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HF_HOME": "~/h", "XDG_CACHE_HOME": "/x"}, "/home/u/h/hub"),
        ({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}, "/c"),
        ({"HUGGINGFACE_HUB_CACHE": "$HOME/c"}, "/home/u/c"),
    ],
)
def test_the_cache_is_where_the_hubs_library_has_it(monkeypatch, variables, folder):
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/u"} | variables).items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder)


@pytest.mark.parametrize(("value", "answer"), [("1", True), ("true", True), ("0", False), ("", False), ("no", False)])
def test_offline(monkeypatch, value, answer):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    assert is_offline() is answer


def write_snapshot(cache: Path, *names: str, revision: str = "main", commit: str = COMMIT) -> Path:
    folder = cache / "models--o--n"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / revision).write_text(commit)
    for name in names:
        (snapshot / name).write_text('{"weight_map": {"x": "1.safetensors", "y": "2.safetensors"}}')
    return snapshot


def test_a_model_in_the_cache_counts_when_it_is_complete(tmp_path):
    model = HubModel("o/n")
    assert find_in_cache(model, tmp_path) is None
    snapshot = write_snapshot(tmp_path, "config.json", "tokenizer.json", "model.safetensors.index.json")
    assert find_in_cache(model, tmp_path) is None
    write_snapshot(tmp_path, "1.safetensors", "2.safetensors")
    assert find_in_cache(model, tmp_path) == snapshot
    assert find_in_cache(HubModel("o/n", revision=COMMIT), tmp_path) == snapshot
    assert find_in_cache(HubModel("o/n", revision="other"), tmp_path) is None
    (snapshot / "2.safetensors").unlink()
    (snapshot / "2.safetensors").symlink_to("gone")
    assert find_in_cache(model, tmp_path) is None


def test_a_gguf_file_in_the_cache(tmp_path):
    snapshot = write_snapshot(tmp_path, "m-Q8_0.gguf")
    assert find_in_cache(HubModel("o/n"), tmp_path) == snapshot / "m-Q8_0.gguf"
    assert find_in_cache(HubModel("o/n", "Q8_0"), tmp_path) == snapshot / "m-Q8_0.gguf"
    assert find_in_cache(HubModel("o/n", "Q4_1"), tmp_path) is None


@pytest.mark.parametrize("commit", ["", "../../../x", "main"])
def test_a_ref_that_is_no_commit_is_no_way_out(tmp_path, commit):
    write_snapshot(tmp_path, "m.gguf", commit=commit)
    assert find_in_cache(HubModel("o/n"), tmp_path) is None


@pytest.mark.parametrize("name", ["..", "../x", "a/../x", "/x", "a//x", "a\\x", "", "a/", "x\n"])
def test_file_names_that_lead_elsewhere(name):
    with pytest.raises(HubError, match="not one to be saved under"):
        check_file_name(name)
    check_file_name("a/b-1..2.gguf")


def test_contents_are_held_to_their_hash(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    assert has_hash(path, hashlib.sha256(b"content").hexdigest())
    assert has_hash(path, "6b584e8ece562ebffc15d38808cd6b98fc3d97ea")  # git hash-object
    assert has_hash(path, "another-kind")
    assert not has_hash(path, "0" * 64)
    assert not has_hash(path, "0" * 40)


def test_a_full_disk_is_told_before_it_is_full(tmp_path):
    check_space(tmp_path, 1000)
    with pytest.raises(OSError, match="GB are needed") as caught:
        check_space(tmp_path, 10**18)
    assert caught.value.errno == errno.ENOSPC
    message = disk_error(caught.value, DownloadRequest(HubModel("o/n"), "/cache", None))
    assert "disk is full" in message
    assert "HF_HOME" in message


def test_a_link_to_a_blob(tmp_path, monkeypatch):
    blob = tmp_path / "blobs" / "x"
    blob.parent.mkdir()
    blob.write_text("content")
    path = tmp_path / "snapshots" / "c" / "sub" / "file"
    link(path, blob)
    assert path.readlink() == Path("../../../blobs/x")
    link(path, blob)
    assert path.read_text() == "content"

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    link(path, blob)
    assert not path.is_symlink()
    assert path.read_text() == "content"
