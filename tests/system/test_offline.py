"""`LLM` and `LLMEngine` with the engine core in a process of its own."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import LLM, LLMEngine, SamplingParams
from headrace.errors import EngineDeadError, StartupError
from tests.system.server import PATIENCE_S, children_of, is_alive, title_of, wait_until

pytestmark = pytest.mark.system

PROMPTS = ["The quick brown fox", "Once upon a time", "Hello"]
LONG = SamplingParams(max_tokens=7000, ignore_eos=True, temperature=0)


@pytest.fixture
def settings(tiny_model: Path, demo_tokenizer: str) -> dict[str, object]:
    return {"load_format": "dummy", "tokenizer": demo_tokenizer, "model": str(tiny_model), "max_model_len": 8000}


@pytest.fixture
def start(settings) -> Iterator[Callable[..., LLMEngine]]:
    engines: list[LLMEngine] = []

    def start(**more: object) -> LLMEngine:
        engines.append(LLMEngine(multiprocess=True, **(settings | more)))
        return engines[-1]

    yield start
    for engine in engines:
        engine.shutdown()


def cores() -> list[int]:
    return [pid for pid in children_of(os.getpid()) if title_of(pid) == "headrace-core-0" and is_alive(pid)]


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_the_same_answers_as_in_this_process(settings, transport):
    params = [
        SamplingParams(max_tokens=20, ignore_eos=True, temperature=0, stop=("zzz",)),
        SamplingParams(max_tokens=30, ignore_eos=True, seed=7, n=2, logprobs=2),
        SamplingParams(max_tokens=5, ignore_eos=True, seed=8, presence_penalty=1.0),
    ]
    inside = LLM(**settings)
    expected = inside.generate(PROMPTS, params)
    inside.shutdown()
    inside.shutdown()  # once is enough, twice is harmless
    with pytest.raises(EngineDeadError, match="shut down"):
        inside.generate("Hello")
    assert not cores()
    llm = LLM(multiprocess=True, ipc_transport=transport, **settings)
    assert len(cores()) == 1
    assert llm.generate(PROMPTS, params) == expected
    llm.shutdown()
    llm.shutdown()
    assert not cores()
    with pytest.raises(EngineDeadError, match="shut down"):
        llm.generate("Hello")


def step_until_it_reports(engine: LLMEngine) -> None:
    while not engine.step():
        pass


def step_for_ever(engine: LLMEngine) -> None:
    while True:
        engine.step()


def test_requests_come_and_go_while_others_run(start):
    engine = start()
    engine.add_request("long", "Hello", LONG)
    step_until_it_reports(engine)
    engine.add_request("short", "Hello", SamplingParams(max_tokens=3, ignore_eos=True))
    seen = []
    while "short" not in seen:
        seen += [output.request_id for output in engine.step() if output.finished]
    engine.abort_request("long")
    assert not engine.has_unfinished_requests()
    assert engine.step() == []
    engine.add_request("after", "Hello", SamplingParams(max_tokens=3, ignore_eos=True))
    while engine.has_unfinished_requests():
        assert {output.request_id for output in engine.step()} <= {"after"}


def test_a_killed_engine_is_an_error_for_the_call_that_waits_and_for_later_ones(start):
    engine = start()
    for place in range(8):
        engine.add_request(str(place), "Hello", LONG)
    step_until_it_reports(engine)
    (core,) = cores()
    os.kill(core, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="headrace-core-0 was killed by SIGKILL"):
        step_for_ever(engine)
    assert not engine.has_unfinished_requests()
    with pytest.raises(EngineDeadError):
        engine.add_request("s", "Hello", LONG)
    assert not engine.has_unfinished_requests()


def test_a_start_that_fails_gives_the_root_cause_and_leaves_nothing(settings, tiny_model, tmp_path):
    with pytest.raises(StartupError, match="--kv-cache-memory"):
        LLM(multiprocess=True, kv_cache_memory=1024, **settings)
    (tmp_path / "config.json").write_text((tiny_model / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 1000)
    with pytest.raises(StartupError, match=r"model\.safetensors"):
        LLM(**(settings | {"model": str(tmp_path), "load_format": "auto"}), multiprocess=True)
    with pytest.raises(StartupError, match="no-such-tokenizer"):
        LLM(**(settings | {"tokenizer": "/no-such-tokenizer"}), multiprocess=True)
    assert not cores()


def test_an_engine_that_is_forgotten_ends(settings):
    engine = LLMEngine(multiprocess=True, **settings)
    assert len(cores()) == 1
    del engine
    gc.collect()
    assert not cores()


PROGRAM = """
import sys
from headrace import LLM, SamplingParams
if __name__ == "__main__":
    llm = LLM(sys.argv[1], tokenizer=sys.argv[2], load_format="dummy", multiprocess=True, max_model_len=8000)
    print("ready", flush=True)
    if sys.argv[3] == "generate":
        llm.generate("Hello", SamplingParams(max_tokens=7000, ignore_eos=True))
"""


def program(tiny_model: Path, demo_tokenizer: str, mode: str) -> tuple[subprocess.Popen[str], int]:
    """A user's program that has started an engine, and the engine core's process id."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tiny_model), demo_tokenizer, mode],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )

    def find() -> int | None:
        return next((pid for pid in children_of(process.pid) if title_of(pid) == "headrace-core-0"), None)

    return process, wait_until(find)


@pytest.mark.parametrize("when", ["loading", "busy"])
def test_the_engine_ends_with_a_parent_that_is_killed(tiny_model, demo_tokenizer, when):
    process, core = program(tiny_model, demo_tokenizer, "generate")
    if when == "busy":
        assert process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until(lambda: not is_alive(core))


def test_a_program_that_ends_without_shutdown_leaves_nothing(tiny_model, demo_tokenizer):
    process, core = program(tiny_model, demo_tokenizer, "end")
    assert process.wait(PATIENCE_S) == 0
    process.stdout.close()
    assert not is_alive(core)


def test_ctrl_c_ends_a_program_that_generates(tiny_model, demo_tokenizer):
    process, core = program(tiny_model, demo_tokenizer, "generate")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == -signal.SIGINT
    process.stdout.close()
    wait_until(lambda: not is_alive(core))
