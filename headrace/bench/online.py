"""`headrace bench serve`: load on a running server, over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop
from tqdm import tqdm

from headrace.bench import workload
from headrace.bench.client import Client, get_json
from headrace.bench.http_client import ExchangeError, HTTPClient, parse_url
from headrace.bench.load import Clock, RealClock, closed_loop, draw_arrivals, open_loop
from headrace.bench.metrics import summarize
from headrace.bench.record import Record
from headrace.bench.report import BUSY_CLIENT, Report, count_errors, kernels, render_errors, render_figures
from headrace.bench.workload import Ask, RandomLengths
from headrace.errors import StartupError

RETRY_S = 0.1  # between two looks whether the server is there


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run. `seed` decides prompts, their order and arrivals."""

    base_url: str = "http://127.0.0.1:8000"
    backend: str = "openai"
    model: str | None = None  # None: the first that the server lists
    num_prompts: int = 1000
    request_rate: float = float("inf")  # requests a second
    burstiness: float = 1.0
    max_concurrency: int | None = None
    dataset_name: str = "random"
    dataset_path: str | None = None
    output_len: int = 128  # of a file's prompts that do not say
    shuffle: bool = True
    random_lengths: RandomLengths = RandomLengths(input_len=1024, output_len=128)
    random_text: bool = False  # words and not token ids
    token_ids: tuple[int, int] = (1000, 30000)
    seed: int = 0
    ignore_eos: bool = True
    temperature: float = 0.0
    extra_body: dict[str, Any] = {}
    num_warmups: int = 0
    ready_timeout_s: float = 60.0
    request_timeout_s: float = 600.0
    goals: dict[str, float] = {}  # milliseconds
    latencies: tuple[str, ...] = ("ttft", "tpot", "itl", "e2el")
    percentiles: tuple[float, ...] = (50.0, 90.0, 99.0)

    @property
    def num_streams(self) -> int | None:
        """Of a closed loop; None: the loop is open."""
        return self.max_concurrency if self.request_rate == float("inf") else None


class Load(msgspec.Struct):
    """What a run has measured, before anything is computed from it."""

    records: list[Record]
    client_cpu_share: float  # of one core, while the load ran


def bench_serve(settings: LoadSettings, api_key: str | None) -> Report:
    """Raises `StartupError` where there is no server to ask, or nothing to ask it."""
    return uvloop.run(_bench_serve(settings, api_key))


async def _bench_serve(settings: LoadSettings, api_key: str | None) -> Report:
    asks = make_asks(settings)
    http = HTTPClient(parse_url(settings.base_url), api_key)
    try:
        client, model = await connect(http, settings)
        load = await run_load(client, settings, asks, RealClock())
    finally:
        http.close()
    return make_report(settings, model, load)


async def connect(http: HTTPClient, settings: LoadSettings) -> tuple[Client, str]:
    """A client for the server's model, and the model's name, once the server has answered a request: a server may list
    its models before they are loaded. Raises `StartupError` if it says no, or says nothing in time."""
    reasons: list[str] = []
    wait = settings.ready_timeout_s
    try:
        async with asyncio.timeout(wait or None):
            while True:
                model = settings.model or await find_model(http, reasons)
                if model is not None:
                    client = make_client(http, settings, model)
                    if not wait or await has_answered(client, settings, reasons):
                        return client, model
                if not wait:
                    raise TimeoutError
                await asyncio.sleep(RETRY_S)
    except TimeoutError:
        reason = reasons[-1] if reasons else "it does not answer"
        when = f" within {wait:g} s" if wait else ""
        raise StartupError(
            f"no server was ready at {settings.base_url}{when}: {reason}; --base-url says where it is"
        ) from None


async def find_model(http: HTTPClient, reasons: list[str]) -> str | None:
    """The first name that the server lists. None: it has to be asked again; why is added to `reasons`."""
    try:
        status, found = await get_json(http, "/v1/models")
        if status == 200:
            return str(found["data"][0]["id"])
    except ExchangeError as error:
        reasons.append(str(error))
        return None
    except (LookupError, TypeError):
        raise StartupError("the answer to GET /v1/models is no list of models; --model names one") from None
    refuse(status, f"status {status}: {found}")
    reasons.append(f"GET /v1/models: status {status}: {found}")
    return None


async def has_answered(client: Client, settings: LoadSettings, reasons: list[str]) -> bool:
    """Whether the server generates a token. If not, why is added to `reasons`."""
    prompt: str | workload.Messages = "Hello"
    if settings.backend == "openai-chat":
        prompt = [{"role": "user", "content": "Hello"}]
    record = await client.measure(client.encode(Ask(prompt, 1)), 1, 0.0)
    if record.error is None:
        return True
    refuse(record.status, record.error)
    reasons.append(record.error)
    return False


def refuse(status: int, error: str) -> None:
    """Raises `StartupError` for a status that will be the same the next time."""
    if status in (401, 403):
        raise StartupError(f"the server asks for another API key ({error}); set HEADRACE_API_KEY or OPENAI_API_KEY")
    if 400 <= status < 500 and status != 429:
        raise StartupError(f"the server refuses to be asked: {error}")


def make_client(http: HTTPClient, settings: LoadSettings, model: str) -> Client:
    more: dict[str, Any] = {"temperature": settings.temperature}
    if settings.ignore_eos:
        more["ignore_eos"] = True
    return Client(http, settings.backend, model, more | settings.extra_body, settings.request_timeout_s)


def make_asks(settings: LoadSettings) -> list[Ask]:
    """The warm-up's requests and then those of the run, of which none is asked twice if they are random."""
    num_asks = settings.num_warmups + settings.num_prompts
    rng = np.random.default_rng([settings.seed, 0])
    is_chat = settings.backend == "openai-chat"
    if settings.dataset_name != "random":
        path = Path(settings.dataset_path or "")
        asks = workload.read_asks(path, num_asks, settings.output_len, rng if settings.shuffle else None)
    elif settings.random_text or is_chat:
        asks = workload.random_texts(num_asks, settings.random_lengths, rng)
    else:
        drawn = workload.random_ids(num_asks, settings.random_lengths, settings.token_ids, rng)
        asks = [Ask(prompt, num_output_tokens) for prompt, num_output_tokens in drawn]
    if is_chat:
        return workload.as_chats(asks)
    if any(ask.is_chat for ask in asks):
        raise StartupError("the prompts are messages, which only --backend openai-chat can ask")
    return asks


async def run_load(client: Client, settings: LoadSettings, asks: Sequence[Ask], clock: Clock) -> Load:
    """The warm-up, one by one, and then the load."""
    bodies = [client.encode(ask) for ask in asks]

    async def send(place: int, arrival: float) -> Record:
        return await client.measure(bodies[place], asks[place].num_output_tokens, arrival)

    await closed_loop(send, settings.num_warmups, 1, clock)
    progress = tqdm(total=settings.num_prompts, unit="request", leave=False, disable=None)  # only on a terminal

    async def send_measured(place: int, arrival: float) -> Record:
        record = await send(settings.num_warmups + place, arrival)
        progress.update()
        return record

    began, cpu_began = time.perf_counter(), time.process_time()
    if settings.num_streams is not None:
        records = await closed_loop(send_measured, settings.num_prompts, settings.num_streams, clock)
    else:
        rng = np.random.default_rng([settings.seed, 1])
        arrivals = draw_arrivals(settings.num_prompts, settings.request_rate, settings.burstiness, rng)
        records = await open_loop(send_measured, arrivals, settings.max_concurrency, clock)
    progress.close()
    share = (time.process_time() - cpu_began) / (time.perf_counter() - began)
    return Load(records, share)


def make_report(settings: LoadSettings, model: str, load: Load) -> Report:
    figures = summarize(
        load.records, latencies=settings.latencies, percentiles=settings.percentiles, goals=settings.goals
    )
    errors = count_errors(load.records)
    lateness = max(record.sent - record.arrival for record in load.records) * 1e3
    results: dict[str, Any] = figures | {
        "errors": errors,
        "client_cpu_share": load.client_cpu_share,
        "max_send_delay_ms": lateness,
        "model": model,
        "loop": "open" if settings.num_streams is None else "closed",
    }
    lines = render_figures(figures, settings.latencies, settings.percentiles)
    lines += ["", f"client: {load.client_cpu_share:.0%} of a core; a request was sent {lateness:.1f} ms late at most"]
    lines += render_errors(errors)
    notes = []
    if load.client_cpu_share > BUSY_CLIENT:
        notes.append("the client was busy: it may be what was measured, and not the server")
    if figures["short_answers"]:
        notes.append(f"{figures['short_answers']} answers have fewer tokens than were asked for")
    return Report(
        benchmark="serve",
        settings=msgspec.to_builtins(settings) | {"request_rate": _finite(settings.request_rate)},
        results=results,
        kernels=kernels(),
        lines=[*title(settings, model), "", *lines],
        notes=notes,
        records=load.records,
    )


def title(settings: LoadSettings, model: str) -> list[str]:
    if settings.num_streams is not None:
        how = f"closed loop of {settings.num_streams} streams"
    elif settings.request_rate == float("inf"):
        how = "all requests at once"
    else:
        limit = "" if settings.max_concurrency is None else f", {settings.max_concurrency} at most at a time"
        how = f"open loop of {settings.request_rate:g} requests/s, burstiness {settings.burstiness:g}{limit}"
    what = settings.dataset_name
    if what == "random":
        lengths = settings.random_lengths
        what = (
            f"random prompts of {lengths.prefix_len + lengths.input_len} tokens, answers of {lengths.output_len} tokens"
        )
    return [f"{model} at {settings.base_url}", f"{how}; {what}; seed {settings.seed}"]


def _finite(rate: float) -> float | None:
    """JSON has no infinity."""
    return None if rate == float("inf") else rate
