"""`headrace bench` as a user runs it, against the tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.server import PATIENCE_S, REPOSITORY

pytestmark = pytest.mark.system

LENGTHS = ("--random-input-len", "20", "--random-output-len", "8")


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., dict]:
    def run(*argv: str, status: int = 0, env: dict[str, str] | None = None) -> dict:
        """What the command has written to its JSON file; `said` is what it printed."""
        path = tmp_path / "out.json"
        done = subprocess.run(
            [sys.executable, "-m", "headrace", "bench", *argv, "--output-json", str(path)],
            cwd=REPOSITORY,
            env=os.environ | (env or {}),
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        written = path.read_text() if path.exists() else "{}"
        return json.loads(written) | {"said": done.stdout + done.stderr, "written": written}

    return run


@pytest.fixture
def model_flags(tiny_model: Path, demo_tokenizer: str) -> list[str]:
    return [str(tiny_model), "--load-format", "dummy", "--tokenizer", demo_tokenizer, "--max-model-len", "256"]


def test_streams_against_a_server_with_a_key(start_server, bench, tmp_path):
    server = start_server(env={"HEADRACE_API_KEY": "a-secret"}).wait_ready()
    picture = tmp_path / "out.png"
    found = bench(
        "serve", "--base-url", server.url, "--num-prompts", "12", "--max-concurrency", "3", "--num-warmups", "1",
        *LENGTHS,
        "--goodput", "e2el:600000", "--metric-percentiles", "50,99.9", "--save-detailed", "--plot", str(picture),
        env={"HEADRACE_API_KEY": "a-secret"},
    )  # fmt: skip
    results = found["results"]
    assert (results["completed"], results["failed"], results["short_answers"]) == (12, 0, 0)
    assert (results["total_input_tokens"], results["total_output_tokens"]) == (12 * 20, 12 * 8)
    assert results["total_cached_tokens"] == 0
    assert results["max_in_flight"] == 3
    assert results["loop"] == "closed"
    assert results["request_goodput"] == pytest.approx(results["request_throughput"])
    assert 0 < results["median_ttft_ms"] <= results["median_e2el_ms"] <= results["p99.9_e2el_ms"]
    assert results["output_throughput"] == pytest.approx(96 / results["duration"])
    assert results["client_cpu_share"] > 0
    assert len(found["records"]) == 12
    assert all(record["arrival"] <= record["sent"] <= record["text_times"][0] for record in found["records"])
    assert "TPOT" in found["said"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "a-secret" not in found["said"] + found["written"]
    # The server has counted the same: the run, the warm-up, and the token of the check that it is ready.
    assert server_tokens(server, "a-secret") == 13 * 8 + 1


def server_tokens(server, key: str) -> float:
    request = urllib.request.Request(server.url + "/metrics", headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("headrace:generation_tokens_total"))


def test_arrivals_in_a_chat(start_server, bench):
    server = start_server().wait_ready()
    found = bench("serve", "--base-url", server.url, "--backend", "openai-chat", "--num-prompts", "10",
                  "--request-rate", "100", *LENGTHS)  # fmt: skip
    assert found["results"]["completed"] == 10
    assert found["results"]["total_output_tokens"] == 80
    assert found["results"]["loop"] == "open"


def test_requests_that_are_refused_are_failures(start_server, bench, tmp_path):
    server = start_server().wait_ready()
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Hello", "max_tokens": 3}\n{"prompt": "Hello", "max_tokens": 1000}\n')
    found = bench("serve", "--base-url", server.url, "--dataset-path", str(prompts), "--num-prompts", "4")
    assert (found["results"]["completed"], found["results"]["failed"]) == (2, 2)
    ((error, count),) = found["results"]["errors"].items()
    assert "status 400" in error
    assert count == 2

    found = bench("serve", "--base-url", server.url, "--num-prompts", "2", "--random-input-len", "300", status=1)
    assert found["results"]["completed"] == 0
    assert found["results"]["mean_ttft_ms"] is None
    found = bench("serve", "--base-url", server.url, "--model", "other", status=1)
    assert "no such model" in found["said"]


def test_a_shared_prefix_is_found_and_random_prompts_are_not(start_server, bench):
    server = start_server().wait_ready()
    flags = ("serve", "--base-url", server.url, "--num-prompts", "4", "--max-concurrency", "1", *LENGTHS)
    found = bench(*flags, "--random-prefix-len", "64", "--num-warmups", "1")
    assert found["results"]["total_cached_tokens"] == 4 * 64
    for _ in range(2):
        assert bench(*flags)["results"]["total_cached_tokens"] == 0
    bench(*flags, "--seed", "5")
    assert bench(*flags, "--seed", "5")["results"]["total_cached_tokens"] > 0


def test_throughput(bench, model_flags):
    found = bench("throughput", *model_flags, "--num-prompts", "6", "--input-len", "20", "--output-len", "8")
    results = found["results"]
    assert results["completed"] == 6
    assert (results["total_input_tokens"], results["total_output_tokens"]) == (120, 48)
    assert results["total_token_throughput"] == pytest.approx(168 / results["duration"])
    assert found["settings"]["max_model_len"] == 256


def test_latency(bench, model_flags, tmp_path):
    found = bench("latency", *model_flags, "--batch-size", "2", "--num-iters", "3", "--num-iters-warmup", "1",
                  "--input-len", "20", "--output-len", "8", "--save-result", "--result-dir", str(tmp_path))  # fmt: skip
    (named_by_its_time,) = tmp_path.glob("bench-latency-*.json")
    assert named_by_its_time.read_text() == found["written"]
    results = found["results"]
    assert len(results["latencies"]) == 3
    assert results["avg_latency"] == pytest.approx(sum(results["latencies"]) / 3)
    assert results["percentiles"]["50"] == sorted(results["latencies"])[1]
    assert results["completed"] == 6
    assert results["total_cached_tokens"] == 0


def test_prompts_that_do_not_fit_the_model_are_an_error(bench, model_flags):
    assert "256" in bench("throughput", *model_flags, "--input-len", "300", status=1)["said"]


def test_startup(bench, model_flags):
    found = bench("startup", *model_flags, "--num-iters", "2")
    results = found["results"]
    assert len(results["first_token_s"]) == len(results["starts"]) == 2
    assert results["min_first_token_s"] <= results["median_first_token_s"] <= results["max_first_token_s"]
    names = {(phase["process"], phase["phase"]) for phase in results["phases"]}
    assert ("core-0", "load model") in names
    assert ("api-0", "tokenizer") in names
    assert all(0 <= phase["began"] <= phase["ended"] for phase in results["phases"])
    assert "load model" in found["said"]


def test_a_server_that_does_not_start_says_why(bench, model_flags):
    said = bench("startup", *model_flags, "--kv-cache-memory", "1", status=1)["said"]
    assert "the server does not start" in said
    assert "--kv-cache-memory" in said
