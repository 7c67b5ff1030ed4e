"""`headrace chat` in a terminal of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.server import PATIENCE_S, REPOSITORY
from tests.system.terminal import Terminal

pytestmark = pytest.mark.system

CTRL_C, CTRL_D = "\x03", "\x04"


@pytest.fixture
def chat(tiny_model: Path, demo_tokenizer: str) -> Iterator[Callable[..., Terminal]]:
    terminals: list[Terminal] = []

    def start(*flags: str) -> Terminal:
        command = [sys.executable, "-m", "headrace", "chat", str(tiny_model), "--tokenizer", demo_tokenizer]
        terminals.append(Terminal(*command, "--load-format", "dummy", *flags))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


PROMPT = r"(?:^|\n)> "


def test_ctrl_c_stops_an_answer_and_the_next_question_is_answered(chat):
    terminal = chat("--max-model-len", "8000", "--sampling-seed", "7")
    place = terminal.wait_for(PROMPT)
    terminal.press("Hello\r")
    place = terminal.wait_for(
        r"\w[^\n]*\w", terminal.wait_for("Hello|\n", place)
    )  # the first text, long before the end
    terminal.press(CTRL_C)
    place = terminal.wait_for(PROMPT, terminal.wait_for(r"\(stopped\)", place))
    terminal.press("/undo\r")
    place = terminal.wait_for(PROMPT, terminal.wait_for(r"\(taken back: Hello\)", place))  # it was in the history
    terminal.press("And now?\r")
    place = terminal.wait_for(r"\w", terminal.wait_for("now\\?\r\n", place))
    terminal.press(CTRL_C)
    terminal.wait_for(PROMPT, terminal.wait_for(r"\(stopped\)", place))
    terminal.press(CTRL_D)
    assert terminal.wait_end() == 0
    assert "Traceback" not in terminal.text


def test_ctrl_c_drops_what_is_typed_and_leaves_where_nothing_is(chat):
    terminal = chat("--max-model-len", "256", "--max-tokens", "5")
    place = terminal.wait_for(PROMPT)
    terminal.press("/sys")
    place = terminal.wait_for("/sys", place)
    terminal.press(CTRL_C)
    place = terminal.wait_for(PROMPT, place)
    terminal.press("/system\r")
    place = terminal.wait_for(PROMPT, terminal.wait_for("no system prompt", place))
    terminal.press(CTRL_C)
    assert terminal.wait_end() == 0
    assert "Traceback" not in terminal.text


def test_what_is_wrong_is_told_before_the_first_prompt(chat):
    terminal = chat("--temperature", "9")
    assert terminal.wait_end() == 1
    terminal.wait_for("error: temperature must be")
    assert "Traceback" not in terminal.text


def test_a_pipe_is_answered_line_by_line(tiny_model, demo_tokenizer):
    command = [sys.executable, "-m", "headrace", "chat", str(tiny_model), "--tokenizer", demo_tokenizer]
    done = subprocess.run(
        [*command, "--load-format", "dummy", "--max-model-len", "64", "--max-tokens", "8", "--sampling-seed", "7"],
        cwd=REPOSITORY, input="Hello\n/clear\nHello\n" + "word " * 100 + "\n", capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    first = done.stdout[: len(done.stdout) // 2]
    assert first.strip()
    assert done.stdout == first * 2
    assert "context has 64 tokens" in done.stderr


@pytest.mark.parametrize(
    "command", [["chat"], ["generate", "--prompt", "a", "--prompt", "b"]], ids=["chat", "generate"]
)
def test_a_reader_who_has_enough_is_no_error(tiny_model, demo_tokenizer, command):
    command = [sys.executable, "-m", "headrace", *command, str(tiny_model), "--tokenizer", demo_tokenizer]
    process = subprocess.Popen(
        [*command, "--load-format", "dummy", "--max-model-len", "256", "--max-tokens", "5"],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    _, stderr = process.communicate(b"one\ntwo\n", PATIENCE_S)
    assert process.returncode == 128 + signal.SIGPIPE
    assert b"Traceback" not in stderr
