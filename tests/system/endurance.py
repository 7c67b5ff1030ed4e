"""A real server of the tiny model under many clients, large prompts and many requests, with what it must keep.

    python -m tests.system.endurance

- **Streams**: 500 at the same time, each begun anew when it has ended; one in five goes away at a random place. Every
  other one must be whole and have the text that its request has when it is alone.
- **Large prompts**: 5 MB as a text, as chat content, as token ids, and to be tokenized; each is refused or served, and
  `/health` answers within 200 ms meanwhile (99 of 100 polls, 50 ms apart).
- **Many requests**: one token each, every prompt another one; the memory of no process grows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from tests.system.server import PATIENCE_S, Server
from tests.system.tiny_server import Postcondition, start_tiny_server, write_tiny_model

POLL_INTERVAL_S = 0.05
MAX_HEALTH_S = 0.2  # 99 of 100
LARGE_BYTES = 5_000_000
# A KV cache that 500 streams do not fit in, and that is touched as a whole by the first thousand requests.
FLAGS = ("--max-num-seqs", "512", "--num-kv-blocks-override", "1024", "--check-invariants")
PATIENCE_OF_MANY_S = 10 * PATIENCE_S  # for one of many, on a machine that they keep busy

STREAMED = [
    {
        "prompt": f"{number} bottles of beer on the wall",
        "max_tokens": 16 + 24 * (number % 4),
        "temperature": number % 3 / 2,
        "seed": number,
        "ignore_eos": True,
        "stream": True,
    }
    for number in range(16)
]


# ---- a client of few lines: hundreds of them must not keep the machine busier than the server does


@contextlib.asynccontextmanager
async def asking(server: Server, path: str, data: bytes | None) -> AsyncIterator[asyncio.StreamReader]:
    """A connection that has sent one request: POST with data, else GET. The answer ends with the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        head = f"{'GET' if data is None else 'POST'} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        if data is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        writer.write(head.encode() + b"\r\n" + (data or b""))
        await writer.drain()
        yield reader
    finally:
        writer.transport.abort()


async def ask(server: Server, path: str, data: bytes | None = None) -> tuple[int, bytes]:
    """Status and body, which must have a known length."""
    async with asyncio.timeout(PATIENCE_OF_MANY_S), asking(server, path, data) as reader:
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        return int(head.split()[1]), body


async def read_some(reader: asyncio.StreamReader, num_bytes: int) -> None:
    """So many, or all that there are."""
    while num_bytes and (data := await reader.read(num_bytes)):
        num_bytes -= len(data)


def text_of(reply: bytes) -> str:
    """The text of a streamed completion. It must be whole."""
    assert reply.startswith(b"HTTP/1.1 200"), reply[:300]
    events = re.findall(rb"^data: (.*)$", reply, re.MULTILINE)
    assert events[-1] == b"[DONE]", events[-1:]
    choices = [msgspec.json.decode(event)["choices"][0] for event in events[:-1]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    return "".join(choice["text"] for choice in choices)


# ---- streams


async def run_streams(server: Server, num_streams: int, seconds: float, seed: int = 0) -> Counter[str]:
    """How many were whole and how many went away. Raises for the first that is not as it must be."""
    rng = random.Random(seed)
    right = {}
    for body in STREAMED:
        async with asking(server, "/v1/completions", json.dumps(body).encode()) as reader:
            right[body["seed"]] = text_of(await reader.read(-1))
    ends: Counter[str] = Counter()
    deadline = time.monotonic() + seconds

    async def client() -> None:
        while time.monotonic() < deadline:
            body = rng.choice(STREAMED)
            leaves_after = rng.randrange(4000) if rng.random() < 0.2 else None  # bytes
            data = json.dumps(body).encode()
            async with asyncio.timeout(PATIENCE_OF_MANY_S), asking(server, "/v1/completions", data) as reader:
                if leaves_after is not None:
                    await read_some(reader, leaves_after)
                    ends["went away"] += 1
                    continue
                assert text_of(await reader.read(-1)) == right[body["seed"]], body
                ends["whole"] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(num_streams):
            group.create_task(client())
    return ends


# ---- large prompts


def large_requests() -> list[tuple[str, bytes]]:
    """Path and body of about 5 MB each. What is ready-made is not made while /health is polled."""
    text = "many words " * (LARGE_BYTES // 11)
    ids = [1000 + number % 9000 for number in range(LARGE_BYTES // 6)]
    chat = {"messages": [{"role": "user", "content": text}]}
    bodies: list[tuple[str, object]] = [
        ("/v1/completions", {"prompt": text}),
        ("/v1/completions", {"prompt": text, "stream": True}),
        ("/v1/completions", {"prompt": ids}),
        ("/v1/completions", {"prompt": [ids[:1000]] * (len(ids) // 1000)}),
        ("/v1/completions", {"prompt": "日本 é 😀" * (LARGE_BYTES // 15)}),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 1000}] * (LARGE_BYTES // 1050)}),
        ("/tokenize", {"prompt": text}),
        ("/tokenize", chat),
        ("/detokenize", {"tokens": ids}),
        ("/v1/completions", {"prompt": "x", "logit_bias": dict.fromkeys(map(str, range(LARGE_BYTES // 11)), 1)}),
        ("/v1/completions", {"prompt": "x", "stop_token_ids": ids}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1, **{f"field {n}": n for n in range(LARGE_BYTES // 24)}}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1, "user": [[]] * (LARGE_BYTES // 4)}),
    ]
    return [(path, json.dumps(body, ensure_ascii=False).encode()) for path, body in bodies]


async def run_large_prompts(server: Server, seconds: float) -> tuple[Counter[str], list[float]]:
    """Statuses, and how long /health took each time. One large request after another, each kind at least once."""
    requests = large_requests()
    statuses: Counter[str] = Counter()
    deadline = time.monotonic() + seconds

    async def send() -> None:
        turn = 0
        while time.monotonic() < deadline or turn < len(requests):
            path, data = requests[turn % len(requests)]
            status, _ = await ask(server, path, data)
            assert status in (200, 400), (path, data[:100], status)
            statuses[f"{path} {status}"] += 1
            turn += 1

    sending = asyncio.create_task(send())
    latencies = await poll_health(server, until=sending.done)
    await sending
    return statuses, latencies


async def poll_health(server: Server, until: Callable[[], bool]) -> list[float]:
    """Seconds that each answer took. A poll begins on time even if the one before is not answered yet."""

    async def poll() -> float:
        started = time.monotonic()
        status, _ = await ask(server, "/health")
        assert status == 200
        return time.monotonic() - started

    polls = []
    while not until():
        polls.append(asyncio.create_task(poll()))
        await asyncio.sleep(POLL_INTERVAL_S)
    return list(await asyncio.gather(*polls))


# ---- many requests


async def run_many(
    server: Server, num_requests: int, num_clients: int = 32, *, stream: bool = False
) -> list[dict[str, int]]:
    """One token each, every prompt another one. The memory of each process at ten places on the way, in kB."""
    memory = []
    numbers = iter(range(num_requests))

    async def client() -> None:
        for number in numbers:
            prompt = f"Request {number:06} asks for one token"
            body = {"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "stream": stream}
            status, _ = await ask(server, "/v1/completions", json.dumps(body).encode())
            assert status == 200
            if number % (num_requests // 10) == 0:
                memory.append(resident_kb(server))

    async with asyncio.TaskGroup() as group:
        for _ in range(num_clients):
            group.create_task(client())
    return memory


def resident_kb(server: Server) -> dict[str, int]:
    """By process."""
    return {
        title: int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1])
        for title, pid in server.processes().items()
    }


def growth_kb(memory: Sequence[dict[str, int]]) -> dict[str, int]:
    """Of each process, over the second half of the way: what it needs at all, it has by then."""
    half = memory[len(memory) // 2 :]
    return {title: half[-1][title] - half[0][title] for title in half[0]}


def leaks(
    server: Server, num_requests: int = 2000, most_kb: int = 1500, rounds: int = 3, *, stream: bool = False
) -> bool:
    """Whether some process grows by more than that in each of these rounds. A leak does so every time; a step up, to
    a crowd of requests at once that there had not been before, comes once."""

    def growth() -> int:
        return max(growth_kb(asyncio.run(run_many(server, num_requests, stream=stream))).values())

    return all(growth() > most_kb for _ in range(rounds))


# ---- all of it


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.system.endurance")
    parser.add_argument("--seconds", type=float, default=60, help="of streams, and of large prompts")
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("streams", "large", "many"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = start_tiny_server(write_tiny_model(Path(folder)), *FLAGS)
        try:
            postcondition = Postcondition(server.wait_ready())
            for name, part in (("streams", _streams), ("large", _large), ("many", _many)):
                if options.only in (None, name):
                    started = time.monotonic()
                    print(f"{name}: {part(server, options)}, {time.monotonic() - started:.0f} s", flush=True)
                    postcondition.check()
        finally:
            server.close()


def _streams(server: Server, options: argparse.Namespace) -> str:
    before = resident_kb(server)
    ends = asyncio.run(run_streams(server, options.streams, options.seconds, options.seed))
    preempted = server.metric("headrace:num_preemptions_total")
    return f"{dict(ends)}, {preempted:.0f} preemptions, kB of memory {before} -> {resident_kb(server)}"


def _large(server: Server, options: argparse.Namespace) -> str:
    statuses, latencies = asyncio.run(run_large_prompts(server, options.seconds))
    p50, p99, most = (1000 * percentile(latencies, share) for share in (0.5, 0.99, 1))
    told = (
        f"{dict(statuses)}, /health of {len(latencies)} polls: p50 {p50:.1f} ms, p99 {p99:.1f} ms, most {most:.1f} ms"
    )
    assert p99 < 1000 * MAX_HEALTH_S, told
    return told


def _many(server: Server, options: argparse.Namespace) -> str:
    memory = asyncio.run(run_many(server, options.requests))
    growth = growth_kb(memory)
    told = f"{options.requests} requests, kB of memory {memory[0]} -> {memory[-1]}, over the second half {growth}"
    assert max(growth.values()) < 1000, told
    return told


if __name__ == "__main__":
    main()
