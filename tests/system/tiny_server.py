"""A server of the tiny model, and what must be so after whatever was done to it."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.config.model_files import locate_model
from tests.system.server import Server, wait_until
from tests.tiny_model import TINY_CONFIG

GAUGES = ("headrace:num_requests_running", "headrace:num_requests_waiting", "headrace:kv_cache_usage_perc")
GREEDY = {"model": "tiny", "prompt": "The quick brown fox", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def write_tiny_model(folder: Path) -> Path:
    """A model folder in `folder`. Its weights are random."""
    model = folder / "tiny"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(TINY_CONFIG))
    return model


def start_tiny_server(model: Path, *flags: str) -> Server:
    """Started, and not yet ready. With the demo model's tokenizer and a context of 256 tokens."""
    tokenizer = str(locate_model(""))
    return Server(
        str(model), "--load-format", "dummy", "--tokenizer", tokenizer, "--max-model-len", "256", *flags
    )  # fmt: skip


class Postcondition:
    """What a plain request is answered with, and which processes there are, before anything is done to a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._processes = server.processes()
        self._text = self._ask()

    def check(self) -> None:
        """The same answer, nobody running or waiting, no KV block in use, no process gone or left over."""
        assert self._ask() == self._text
        for name in GAUGES:
            wait_until(lambda name=name: self._server.metric(name) == 0)
        assert self._server.processes() == self._processes

    def _ask(self) -> str:
        status, answer = self._server.post("/v1/completions", GREEDY)
        assert status == 200, answer
        return answer["choices"][0]["text"]
