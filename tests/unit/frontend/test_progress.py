"""The progress bar of `LLM.generate`, and Ctrl-C while it runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from headrace.contracts.engine import EngineCoreOutputs
from headrace.frontend.interrupts import held_interrupts
from headrace.frontend.llm import LLM
from tests.unit.frontend.test_llm import EchoEngine


@pytest.fixture
def llm(input_processor):
    return LLM.over(input_processor, EchoEngine())


def test_a_bar_that_is_asked_for_counts_prompts_and_tokens(llm, capsys):
    llm.generate(["one two", "three"], use_tqdm=True)
    bar = capsys.readouterr().err
    assert "2/2" in bar
    assert "in " in bar
    assert "out " in bar


def test_a_terminal_has_a_bar_unless_it_is_not_wanted(llm, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    llm.chat([{"role": "user", "content": "one"}])
    assert "1/1" in capsys.readouterr().err
    llm.chat([{"role": "user", "content": "one"}], use_tqdm=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("wish", [None, False])
def test_no_bar_where_nobody_watches(llm, capsys, wish):
    llm.generate("one two", use_tqdm=wish)
    assert capsys.readouterr().err == ""


def test_the_bars_library_is_loaded_for_a_bar_only(repository):
    source = "import sys, headrace.frontend.llm, headrace.cli.generate; sys.exit('tqdm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], cwd=repository, check=False).returncode == 0


class Interrupted(EchoEngine):
    """Gets SIGINT in the middle of its first step."""

    def get_output(self) -> EngineCoreOutputs:
        if not hasattr(self, "has_finished_step"):
            signal.raise_signal(signal.SIGINT)
            self.has_finished_step = True
        return super().get_output()


def test_ctrl_c_comes_between_two_steps_and_the_engine_goes_on(input_processor):
    core = Interrupted()
    llm = LLM.over(input_processor, core)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["one two three", "four five"])
    assert core.has_finished_step
    assert not core.running
    assert llm.generate("six")[0].outputs[0].text == "six"


def test_a_second_ctrl_c_does_not_wait():
    with held_interrupts() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_thread_leaves_the_signal_alone():
    handlers = []

    def run() -> None:
        with held_interrupts() as interrupted:
            handlers.append((signal.getsignal(signal.SIGINT), interrupted()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [(signal.default_int_handler, False)]
