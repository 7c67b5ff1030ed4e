"""From the command to the first token: five cold processes in a row with a warm page cache."""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

ROUNDS = 5
BODY = json.dumps({"model": "", "prompt": "Hello", "max_tokens": 1, "temperature": 0}).encode()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def first_token(port: int) -> tuple[float, str]:
    """Seconds to the first token, and what the server printed about its start."""
    began = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "-m", "headrace", "serve", "--port", str(port)], stderr=subprocess.PIPE, text=True
    )
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", BODY, {"content-type": "application/json"}
    )
    while True:
        try:
            urllib.request.urlopen(request, timeout=60).read()
            break
        except OSError:
            time.sleep(0.005)  # the launcher has not opened its socket yet
    seconds = time.perf_counter() - began
    server.terminate()
    return seconds, server.communicate()[1]


def main() -> None:
    seconds = []
    for _ in range(ROUNDS):
        took, text = first_token(free_port())
        seconds.append(took)
    print(text.partition("draining")[0].rpartition("\n")[0])
    print(f"first_token_s median {statistics.median(seconds):.2f} min {min(seconds):.2f} max {max(seconds):.2f}")
