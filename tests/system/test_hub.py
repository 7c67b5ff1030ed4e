"""Models by their name on the hub: the whole way, against a hub on loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headrace.cli import main
from headrace.config.engine_config import EngineConfig
from headrace.config.model_files import locate_model
from headrace.config.resolve import resolve
from headrace.errors import ConfigError, UnsupportedModelError
from tests.conformance.random_model import Shape, write_model
from tests.system.fake_hub import LARGE_BYTES, FakeHub, Repository
from tests.system.server import PATIENCE_S, REPOSITORY, Server, is_alive, wait_until
from tests.system.terminal import Terminal

pytestmark = pytest.mark.system

NAME, GGUF_NAME = "somebody/tiny-llama", "somebody/tiny-llama-GGUF"
WEIGHTS = "model.safetensors"
TOKEN = "hf_aSecretThatNobodyMaySee"
COMPLETION = {"model": NAME, "prompt": "Hello", "max_tokens": 5, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A whole model: random weights, and a tokenizer with a token for each byte."""
    folder = tmp_path_factory.mktemp("hub-model")
    write_model(folder, Shape(head_dim=16, num_heads=4, num_kv_heads=2, hidden_size=64, intermediate_size=128))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: place for place, text in enumerate(["<unk>", "<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(model_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    hub = FakeHub()
    unread = {"README.md": b"# A model", "pytorch_model.bin": b"pickle", "modeling_llama.py": b"print()"}
    hub.repositories[NAME] = Repository(model_files | unread)
    hub.repositories[GGUF_NAME] = Repository(
        {f"tiny.{word}.gguf": word.encode() * LARGE_BYTES for word in ("Q4_1", "Q8_0")}
    )
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf home"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield hub
    hub.close()


@pytest.fixture
def cache(hub: FakeHub, tmp_path: Path) -> Path:
    return tmp_path / "hf home" / "hub"


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def error_of(name: str, **settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        locate_model(name, **settings)
    return caught.value.message


# ---- what comes ------------------------------------------------------------------------------------------------------


def test_only_the_files_that_are_read_come(hub, cache, model_files, capfd):
    path = locate_model(NAME)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == model_files
    assert names_in(cache / "models--somebody--tiny-llama") >= {"refs/main"}
    assert path == cache / "models--somebody--tiny-llama" / "snapshots" / ("a" * 40)
    lines = capfd.readouterr().err.splitlines()
    assert all(line.startswith("headrace: ") for line in lines)
    assert any(f"{NAME}: 0.4 MB of 0.4 MB" in line for line in lines)


def test_a_terminal_has_a_bar(hub):
    terminal = Terminal(sys.executable, "-m", "headrace", "plan", NAME, "--max-model-len", "64")
    try:
        terminal.wait_for(rf"{NAME}: 100%.*\d+k/\d+k")
        assert terminal.wait_end() == 0
    finally:
        terminal.close()


def test_the_hubs_own_library_finds_the_model_in_the_cache(hub):
    path = locate_model(NAME)
    script = f"from huggingface_hub import snapshot_download as s; print(s({NAME!r}, local_files_only=True), end='')"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == str(path)


def test_a_server_and_every_command_take_the_name(hub, capsys):
    server = Server(NAME, "--max-model-len", "64")
    try:
        server.wait_ready()
        assert "ask the hub, download" in server.stderr
        status, answer = server.post("/v1/completions", COMPLETION)
        assert (status, answer["model"]) == (200, NAME)
    finally:
        server.close()
    assert main(["plan", NAME, "--max-model-len", "64"]) == 0
    assert main(["generate", NAME, "--max-model-len", "64", "--prompt", "Hello", "--max-tokens", "5"]) == 0
    assert capsys.readouterr().out.endswith(answer["choices"][0]["text"] + "\n")


def test_a_gguf_file_by_its_name_or_its_quantisation(hub):
    path = locate_model(f"{GGUF_NAME}:Q8_0")
    assert path.name == "tiny.Q8_0.gguf"
    assert locate_model(f"{GGUF_NAME}:tiny.Q8_0.gguf") == path
    assert not hub.of_file("tiny.Q4_1.gguf")
    assert "tiny.Q4_1.gguf, tiny.Q8_0.gguf" in error_of(GGUF_NAME)
    assert "no GGUF file 'Q2_K'" in error_of(f"{GGUF_NAME}:Q2_K")
    hub.repositories[GGUF_NAME].files.pop("tiny.Q4_1.gguf")
    assert locate_model(GGUF_NAME) == path


def test_a_model_of_another_architecture_is_refused_before_its_weights_come(hub):
    files = hub.repositories[NAME].files
    files["config.json"] = files["config.json"].replace(b"LlamaForCausalLM", b"StrangeForCausalLM")
    with pytest.raises(UnsupportedModelError, match="StrangeForCausalLM"):
        locate_model(NAME)
    assert not hub.of_file(WEIGHTS)


def test_shards_come_as_the_index_names_them(hub, model_files):
    files = hub.repositories[NAME].files
    weights = files.pop(WEIGHTS)
    files |= {"model-00001-of-00001.safetensors": weights, "consolidated.safetensors": weights}
    files["model.safetensors.index.json"] = b'{"weight_map": {"x": "model-00001-of-00001.safetensors"}}'
    assert "model-00001-of-00001.safetensors" in {path.name for path in locate_model(NAME).iterdir()}
    assert not hub.of_file("consolidated.safetensors")
    files["model.safetensors.index.json"] = b'{"weight_map": {"x": "../outside.safetensors"}}'
    hub.repositories[NAME].commit = "b" * 40
    assert "'../outside.safetensors', which there is not" in error_of(NAME)


# ---- interruptions ---------------------------------------------------------------------------------------------------


def test_a_download_goes_on_where_the_connection_was_cut(hub, model_files):
    hub.cut_after[WEIGHTS] = 100_000
    path = locate_model(NAME)
    assert (path / WEIGHTS).read_bytes() == model_files[WEIGHTS]
    assert [request.headers.get("range") for request in hub.of_file(WEIGHTS)] == [None, "bytes=100000-"]


def test_a_download_goes_on_where_an_earlier_one_was_broken_off(hub, cache, model_files):
    hub.stall_after[WEIGHTS] = 100_000
    server = Server(NAME)
    try:
        wait_until(lambda: 100_000 in sizes_of_partial_files(cache))
        (download,) = (pid for pid in descendants(server.process.pid) if b"hub_download" in command_of(pid))
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_end() == 128 + signal.SIGTERM
        assert "stopped while starting" in server.stderr
        assert "Traceback" not in server.stderr
        wait_until(lambda: not is_alive(download))
    finally:
        server.close()
    hub.stall_after.clear()
    assert (locate_model(NAME) / WEIGHTS).read_bytes() == model_files[WEIGHTS]
    assert [request.headers.get("range") for request in hub.of_file(WEIGHTS)] == [None, "bytes=100000-"]
    assert not list(cache.rglob("*.headrace-partial"))


def sizes_of_partial_files(cache: Path) -> list[int]:
    with contextlib.suppress(FileNotFoundError):  # one that has just become whole
        return [path.stat().st_size for path in cache.rglob("*.headrace-partial")]
    return []


def descendants(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_download_ends_with_a_parent_that_is_killed(hub, cache):
    hub.stall_after[WEIGHTS] = 100_000
    command = [sys.executable, "-m", "headrace", "plan", NAME]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL) as parent:
        wait_until(lambda: 100_000 in sizes_of_partial_files(cache))
        (download,) = descendants(parent.pid)
        parent.kill()
    wait_until(lambda: not is_alive(download))


def test_content_that_is_not_what_the_hub_says_is_thrown_away(hub, cache):
    hub.corrupts.add(WEIGHTS)
    assert "other contents than the hub says" in error_of(NAME)
    assert WEIGHTS not in {path.name for path in cache.rglob("*")}
    hub.corrupts.clear()
    assert (locate_model(NAME) / WEIGHTS).is_file()


# ---- the cache -------------------------------------------------------------------------------------------------------


def test_a_complete_model_costs_one_question(hub):
    path = locate_model(NAME)
    hub.requests.clear()
    assert locate_model(NAME) == path
    assert [request.path for request in hub.requests] == [f"/api/models/{NAME}/revision/main"]


def test_a_commit_is_not_asked_for_again(hub):
    commit = hub.repositories[NAME].commit
    path = locate_model(NAME, commit)
    hub.requests.clear()
    assert locate_model(NAME, commit) == path
    assert not hub.requests


def test_a_new_commit_brings_what_has_changed(hub, model_files):
    first = locate_model(NAME)
    repository = hub.repositories[NAME]
    repository.commit = "b" * 40
    repository.files |= {"generation_config.json": b'{"temperature": 0.5}'}
    hub.requests.clear()
    second = locate_model(NAME)
    assert second.name == "b" * 40
    assert first.is_dir()
    assert not hub.of_file(WEIGHTS)
    assert resolve(EngineConfig(model=NAME)).model.sampling_defaults == {"temperature": 0.5}


def test_a_branch_by_its_name(hub):
    hub.repositories[NAME].revisions["refs/pr/1"] = ""
    path = locate_model(NAME, "refs/pr/1")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        assert locate_model(NAME, "refs/pr/1") == path
    finally:
        del os.environ["HF_HUB_OFFLINE"]
    assert "no branch, tag or commit 'nowhere'" in error_of(NAME, revision="nowhere")
    assert "--revision" in error_of(NAME, revision="nowhere")
    assert "--revision" in error_of(NAME, revision="../../x")


def test_without_the_hub_the_cache_is_used_and_that_is_said(hub, monkeypatch, capfd):
    path = locate_model(NAME)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused_port()}")
    capfd.readouterr()
    assert locate_model(NAME) == path
    (line,) = capfd.readouterr().err.splitlines()
    assert "cannot be reached" in line
    assert "in the cache" in line
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    for hub.status in (503, 401, 200):  # the last is a page where the hub's answer should be
        assert locate_model(NAME) == path


def test_offline_nobody_is_asked(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in error_of(NAME)
    assert not hub.requests
    monkeypatch.delenv("HF_HUB_OFFLINE")
    path = locate_model(NAME)
    hub.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert locate_model(NAME) == path
    assert not hub.requests
    (path / WEIGHTS).unlink()
    assert "not complete" in error_of(NAME)


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_a_name_that_there_is_not(hub, capfd):
    assert main(["plan", "somebody/else"]) == 1
    error = capfd.readouterr().err
    assert "somebody/else" in error
    assert "HF_TOKEN" in error
    assert "Traceback" not in error
    assert len(error.splitlines()) == 1


def test_no_network_and_nothing_cached(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused_port()}")
    assert "cannot be reached" in error_of(NAME)
    monkeypatch.setenv("HF_ENDPOINT", f"http://user:secret@127.0.0.1:{unused_port()}")
    assert "secret" not in error_of(NAME)


def test_a_gated_model(hub):
    hub.repositories[NAME].is_gated = True
    error = error_of(NAME)
    assert "is gated" in error
    assert f"{hub.url}/{NAME}" in error


def test_a_private_model_and_where_its_token_goes(hub, monkeypatch, capfd):
    hub.repositories[NAME].token = TOKEN
    assert "HF_TOKEN" in error_of(NAME)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert locate_model(NAME).is_dir()
    by_server = {name: [r for r in hub.requests[1:] if r.server == name] for name in ("hub", "store")}
    assert by_server["store"]
    assert all(request.headers["authorization"] == f"Bearer {TOKEN}" for request in by_server["hub"])
    assert not [request for request in by_server["store"] if "authorization" in request.headers]
    assert TOKEN not in str(capfd.readouterr())


@pytest.mark.parametrize("token", [TOKEN, f"{TOKEN}\x0bx"])
def test_a_token_that_is_no_good_is_not_shown(hub, monkeypatch, capfd, token):
    """The second one cannot even be sent, which the HTTP library says with the whole header."""
    hub.refused_token = TOKEN
    monkeypatch.setenv("HF_TOKEN", token)
    error = error_of(NAME)
    assert hub.url in error
    assert TOKEN not in error
    assert TOKEN not in str(capfd.readouterr())


@pytest.mark.parametrize("name", ["../../escape.json", "/etc/escape", "a/../../escape", "a\\..\\escape", "x//y"])
def test_a_file_name_that_leads_out_of_the_cache(hub, cache, name):
    hub.repositories[NAME].extra_names = (name,)
    assert "not one to be saved under" in error_of(NAME)
    assert not [path for path in cache.parent.rglob("*") if "escape" in path.name]


@pytest.mark.parametrize("commit", ["../../../escape", "", "a" * 39])
def test_a_commit_that_is_none(hub, cache, commit):
    hub.repositories[NAME].commit = commit
    assert "which is none" in error_of(NAME)


def test_a_repository_without_weights_that_are_read(hub):
    del hub.repositories[NAME].files[WEIGHTS]
    error = error_of(NAME)
    assert "pytorch_model.bin" in error


def test_a_cache_that_cannot_be_written(hub, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file"))
    error = error_of(NAME)
    assert str(tmp_path / "file") in error
    assert "HF_HOME" in error


def test_who_waits_for_a_download_does_not_load_the_hubs_library(hub):
    script = (
        "import sys; from headrace.config.model_files import locate_model; "
        f"locate_model({NAME!r}); sys.exit('huggingface_hub' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0
