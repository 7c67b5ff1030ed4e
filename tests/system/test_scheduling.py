"""Scheduling as clients meet it: cases of other engines, on a server of the tiny model with little memory."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable

import pytest

from tests.system.server import Server, wait_until

pytestmark = pytest.mark.system

# Special tokens are shown: a random model says little else.
GREEDY = {"model": "tiny", "temperature": 0, "ignore_eos": True, "skip_special_tokens": False}
BLOCK_SIZE = 16
PROMPT = list(range(100, 180))  # five blocks


def text_of(server: Server, **body: object) -> str:
    status, answer = server.post("/v1/completions", GREEDY | body)
    assert status == 200, answer
    return answer["choices"][0]["text"]


def in_background(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_g01_a_hit_gives_the_same_as_a_miss(start_server):
    server = start_server("--verify-prefix-hits", "--check-invariants").wait_ready()
    texts = []
    for i in range(4):
        texts.append(text_of(server, prompt=PROMPT, max_tokens=20))
        text_of(server, prompt=[i] * 40, max_tokens=5)
        hits = server.metric("headrace:prefix_cache_hits_total")
        assert hits == i * (len(PROMPT) - BLOCK_SIZE)  # all blocks but the last, whose last token is computed anew
    assert len(set(texts)) == 1


def test_g08_two_long_requests_in_a_cache_for_one(start_server):
    """17 blocks; each request comes to 15. Both end, with the tokens that they get alone."""
    server = start_server("--num-kv-blocks-override", "17").wait_ready()
    bodies = [{"prompt": [7 + i] * 40, "max_tokens": 200} for i in range(2)]
    alone = [text_of(server, **body) for body in bodies]
    together: dict[int, str] = {}
    threads = [in_background(lambda i=i: together.update({i: text_of(server, **bodies[i])})) for i in range(2)]
    for thread in threads:
        thread.join()
    assert [together[i] for i in range(2)] == alone
    assert 0 < server.metric("headrace:num_preemptions_total") <= 6


def test_g11_what_can_never_fit_the_cache_is_refused_at_once(start_server):
    server = start_server("--num-kv-blocks-override", "4").wait_ready()
    for stream in (False, True):
        status, answer = server.post("/v1/completions", GREEDY | {"prompt": PROMPT, "max_tokens": 5, "stream": stream})
        assert (status, answer["error"]["code"]) == (400, "kv_capacity_exceeded")
        assert "84" in answer["error"]["message"]
        assert "64" in answer["error"]["message"]
    assert text_of(server, prompt=[1, 2, 3], max_tokens=5)


def test_g12_an_urgent_request_does_not_wait_for_the_others(start_server):
    """All places are taken by requests of low priority; an urgent one is done before any of them is."""
    server = start_server("--scheduling-policy", "priority", "--max-num-seqs", "2").wait_ready()
    done: list[str] = []

    def ask(name: str, priority: int, max_tokens: int) -> None:
        text_of(server, prompt=[ord(name)] * 8, max_tokens=max_tokens, priority=priority)
        done.append(name)

    slow = [in_background(lambda name=name: ask(name, 5, 240)) for name in "abc"]
    wait_until(lambda: server.metric("headrace:num_requests_running") == 2)
    ask("u", 0, 4)
    assert done == ["u"]
    for thread in slow:
        thread.join()
    assert server.metric("headrace:num_preemptions_total") == 1


def test_priority_needs_the_policy(start_server):
    server = start_server().wait_ready()
    status, answer = server.post("/v1/completions", GREEDY | {"prompt": "x", "max_tokens": 1, "priority": 3})
    assert (status, answer["error"]["param"]) == (400, "priority")


def test_salts_do_not_share(start_server):
    server = start_server().wait_ready()
    for salt, hits in (("a", 0), ("b", 0), ("a", 64), (None, 64)):
        text_of(server, prompt=PROMPT, max_tokens=1, cache_salt=salt)
        assert server.metric("headrace:prefix_cache_hits_total") == hits


def test_health_follows_progress(start_server):
    """An engine that stands still is not healthy, however alive its process is; when it goes on, so do its requests."""
    server = start_server("--health-timeout", "0.5").wait_ready()
    chunks: list[str] = []
    body = GREEDY | {"prompt": PROMPT, "max_tokens": 100, "stream": True}
    reader = in_background(lambda: chunks.extend(server.stream("/v1/completions", body)))
    wait_until(lambda: server.metric("headrace:num_requests_running") == 1)
    server.signal(signal.SIGSTOP, "headrace-core-0")
    wait_until(lambda: server.get("/health")[0] == 503)
    assert server.get("/live")[0] == 200
    server.signal(signal.SIGCONT, "headrace-core-0")
    wait_until(lambda: server.get("/health")[0] == 200)
    reader.join()
    assert chunks[-1] == "[DONE]"
    assert json.loads(chunks[-2])["choices"][0]["finish_reason"] == "length"
