"""Servers for whole-server tests: a random model of two layers with the demo model's tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.config.model_files import locate_model
from tests.system.server import Server
from tests.system.tiny_server import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def demo_tokenizer() -> str:
    return str(locate_model(""))


@pytest.fixture
def start_server(tiny_model: Path, demo_tokenizer: str) -> Iterator[Callable[..., Server]]:
    """Start servers of the tiny model with more flags; all are gone after the test."""
    servers: list[Server] = []

    def start(*flags: str, **options: object) -> Server:
        servers.append(
            Server(
                str(tiny_model),
                "--load-format",
                "dummy",
                "--tokenizer",
                demo_tokenizer,
                "--max-model-len",
                "256",
                *flags,
                **options,
            )
        )
        return servers[-1]

    yield start
    for server in servers:
        server.close()
