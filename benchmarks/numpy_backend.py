"""Steps of the demo model on the numpy backend, without the rest of the engine: load, decode and prefill."""

from __future__ import annotations

import statistics
import time

import numpy as np

from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.contracts.sampling_params import SamplingParams
from headrace.contracts.scheduler import CachedRequestData, NewRequestData, SchedulerOutput
from headrace.worker.worker import Worker

CONTEXT = 150  # tokens of the prompt of each stream
DECODE_STEPS = 40
PROMPT, BUDGET = 512, 64
BLOCK_SIZE = 16


def main() -> None:
    config = resolve(EngineConfig(backend="numpy", max_model_len=1024, block_size=BLOCK_SIZE))
    worker = Worker(config)
    start = time.perf_counter()
    worker.load_model()
    print(f"load              {time.perf_counter() - start:7.2f} s")
    worker.initialize_kv_cache(worker.determine_num_kv_blocks())
    for num_streams in (1, 8, 32):
        seconds = decode(worker, num_streams)
        print(f"decode x{num_streams:<3}       {seconds * 1e3:7.1f} ms a step  {num_streams / seconds:7.1f} tok/s")
    rates = [prefill(worker) for _ in range(6)]
    print(f"prefill {PROMPT} by {BUDGET}  {statistics.median(rates):7.1f} tok/s, best {max(rates):.1f}")
    worker.close()


def new_request(name: str, length: int, row: int) -> NewRequestData:
    prompt = np.random.default_rng(row).integers(0, 49000, length).tolist()
    blocks = list(range(row * PROMPT // BLOCK_SIZE, (row + 1) * PROMPT // BLOCK_SIZE))
    return NewRequestData(name, prompt, [], SamplingParams(temperature=0.0), [blocks], 0)


def step(worker: Worker, scheduled: dict[str, int], new: list[NewRequestData], finished: list[str]) -> float:
    """Seconds of one step."""
    output = SchedulerOutput(0, new, CachedRequestData(), scheduled, sum(scheduled.values()), [], finished)
    start = time.perf_counter()
    worker.execute_model(output)
    worker.sample_tokens()
    return time.perf_counter() - start


def decode(worker: Worker, num_streams: int) -> float:
    """Median seconds of a step in which every stream decodes one token."""
    requests = [new_request(f"stream {i}", CONTEXT, i) for i in range(num_streams)]
    for request in requests:
        step(worker, {request.req_id: CONTEXT}, [request], [])
    scheduled = {request.req_id: 1 for request in requests}
    seconds = [step(worker, scheduled, [], []) for _ in range(max(8, DECODE_STEPS // num_streams))]
    step(worker, {}, [], list(scheduled))
    return statistics.median(seconds)


def prefill(worker: Worker) -> float:
    """Tokens a second over a whole prompt in chunks of the budget."""
    request = new_request("prompt", PROMPT, 0)
    seconds = [step(worker, {"prompt": BUDGET}, [] if i else [request], []) for i in range(PROMPT // BUDGET)]
    step(worker, {}, [], ["prompt"])
    return PROMPT / sum(seconds)


if __name__ == "__main__":
    main()
