"""The flags of `headrace bench`: what is wrong is said before anything runs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from headrace.cli import main
from headrace.cli.bench import api_key


def test_what_there_is(capsys):
    assert main(["bench"]) == 2
    assert "startup" in capsys.readouterr().err
    assert main(["bench", "--help"]) == 0
    assert "startup" in capsys.readouterr().out
    assert main(["bench", "no-such-thing"]) == 2


@pytest.mark.parametrize("what", ["serve", "throughput", "latency", "startup"])
def test_help(what, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", what, "--help"])
    assert ended.value.code == 0
    assert "--output-json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["serve", "--num-prompts", "0"], "--num-prompts: '0' must be a whole number from 1"),
        (["serve", "--request-rate", "0"], "--request-rate: '0' must be a number above 0, or inf"),
        (["serve", "--request-rate", "nan"], "--request-rate"),
        (["serve", "--burstiness", "inf"], "--burstiness"),
        (["serve", "--random-range-ratio", "1"], "--random-range-ratio"),
        (["serve", "--token-ids", "9:3"], "such as 1000:30000"),
        (["serve", "--goodput", "itl:5"], "one of ttft, tpot, e2el"),
        (["serve", "--goodput", "ttft:soon"], "'soon' must be a number above 0"),
        (["serve", "--percentile-metrics", "ttft,speed"], "'speed'; there are ttft,tpot,itl,e2el"),
        (["serve", "--metric-percentiles", "101"], "numbers from 0 to 100"),
        (["serve", "--extra-body", "[1]"], "must be a JSON object"),
        (["serve", "--dataset-name", "sharegpt"], "needs a file"),
        (["serve", "--dataset-name", "random", "--dataset-path", "x"], "a file is for"),
        (["serve", "--api-key", "secret"], "unrecognized"),
        (["latency", "--batch-size", "many"], "--batch-size"),
        (["throughput", "--port", "1"], "unrecognized"),
        (["startup", "--num-iters", "0"], "--num-iters"),
        (["startup", "--api-key", "secret"], "unrecognized"),
        (["startup", "--max-num-seqs", "0"], "--max-num-seqs"),
    ],
)
def test_a_wrong_value_names_its_flag(argv, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", *argv])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--output-json", "/no/such/folder/x.json"], "--output-json: there is no folder /no/such/folder"),
        (["--output-json", "/tmp"], "--output-json: /tmp is a folder"),
        (["--plot", "/no/such/folder/x.png"], "--plot: there is no folder"),
        (["--save-result", "--result-dir", "/no/such/folder"], "--result-dir"),
        (["--base-url", "http://me:hush@host"], "--base-url"),
        (["--dataset-path", "/no/such/file"], "--dataset-path"),
        (["--port", "1", "--ready-check-timeout-sec", "0"], "no connection"),
    ],
)
def test_what_cannot_be_done_is_an_error_before_the_run(flags, words, capsys):
    assert main(["bench", "serve", *flags]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert "hush" not in said


def test_a_picture_without_matplotlib_is_an_error_before_the_run(monkeypatch, capsys):
    monkeypatch.setattr("headrace.bench.plot.find_spec", lambda name: None)
    assert main(["bench", "latency", "--plot", "x.png"]) == 1
    assert "pip install 'headrace[bench]'" in capsys.readouterr().err
    assert importlib.util.find_spec("matplotlib")  # which the tests have


def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.delenv("HEADRACE_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert api_key() is None
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    assert api_key() == "theirs"
    monkeypatch.setenv("HEADRACE_API_KEY", "first second")
    assert api_key() == "first"


def test_nothing_is_loaded_that_another_command_or_a_help_text_does_without(repository):
    source = (
        "import sys, headrace.cli.serve, headrace.cli.bench; "
        "sys.exit(bool({'numpy', 'asyncio', 'uvloop', 'httptools', 'matplotlib', 'headrace.bench'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", source], cwd=repository, check=False).returncode == 0
