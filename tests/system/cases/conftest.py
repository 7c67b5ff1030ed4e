"""The servers of the cases, and what must hold after each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.cases.client import COMPLETIONS, ask
from tests.system.cases.crowd import Crowd, truth
from tests.system.server import Server, wait_until

MODES = {"plain": {}, "optimized": {"PYTHONOPTIMIZE": "1"}}
FAULTS = Path(__file__).with_name("faults")
GAUGES = ("headrace:num_requests_running", "headrace:num_requests_waiting", "headrace:kv_cache_usage_perc")

STRICT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{- raise_exception('System role not supported') -}}{%- endif -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') -}}
{%- endif -%}
{%- for call in message.tool_calls -%}{{- call[0].name -}}{%- endfor -%}
{{- "[" + message.role + "] " + message.content + "\\n" -}}
{%- endfor -%}
"""


@pytest.fixture(scope="package", params=MODES)
def mode(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of the server's processes."""
    notes = tmp_path_factory.mktemp("notes")
    return MODES[request.param] | {"PYTHONPATH": str(FAULTS), "NOTES": str(notes)}


@pytest.fixture(scope="package")
def flags(tiny_model: Path, demo_tokenizer: str) -> list[str]:
    return [
        str(tiny_model), "--load-format", "dummy", "--tokenizer", demo_tokenizer, "--max-model-len", "256",
        "--max-num-seqs", "32",
    ]  # fmt: skip


@pytest.fixture(scope="package")
def server(mode: dict[str, str], flags: list[str]) -> Iterator[Server]:
    server = Server(*flags, env=mode)
    try:
        server.wait_ready()
        for pid in server.processes().values():
            assert Path(mode["NOTES"], str(pid)).read_text() == mode.get("PYTHONOPTIMIZE", "0")
        yield server
    finally:
        server.close()


@pytest.fixture(scope="package")
def strict_server(mode: dict[str, str], flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its chat template prints a BOS, and takes neither a system message nor two turns of one side."""
    template = tmp_path_factory.mktemp("templates") / "strict.jinja"
    template.write_text(STRICT_TEMPLATE)
    server = Server(*flags, "--chat-template", str(template), env=mode)
    try:
        yield server.wait_ready()
    finally:
        server.close()


@pytest.fixture(scope="package")
def right_text(server: Server) -> str:
    return ask(server, COMPLETIONS).text


@pytest.fixture(scope="package")
def right_crowd(server: Server) -> list[str]:
    return truth(server)


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(params=["alone", "beside"], autouse=True)
def surroundings(
    request: pytest.FixtureRequest, server: Server, right_text: str, right_crowd: list[str]
) -> Iterator[None]:
    """Around a case: nothing or eight healthy streams. After it: the server answers as before, no request, block or
    process is left over or gone, and the streams had what they always have."""
    processes = server.processes()
    if request.param == "alone":
        yield
    else:
        with Crowd(server, right_crowd):
            yield
    assert ask(server, COMPLETIONS).text == right_text
    for name in GAUGES:
        wait_until(lambda name=name: server.metric(name) == 0)
    assert server.processes() == processes
