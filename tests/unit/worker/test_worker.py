from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.contracts.sampling_params import SamplingParams
from headrace.contracts.scheduler import CachedRequestData, NewRequestData, SchedulerOutput
from headrace.errors import EngineError
from headrace.worker.worker import Worker
from tests.tiny_model import TINY_CONFIG

PROMPT = [5, 900, 17, 4000, 23, 9, 9, 12, 31000]
SAMPLED = SamplingParams(temperature=1.0, seed=11)


def make_worker(folder: Path) -> Worker:
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG | {"vocab_size": 32000}))
    settings = EngineConfig(
        model=str(folder),
        load_format="dummy",
        block_size=4,
        max_model_len=64,
        max_num_seqs=4,
        num_kv_blocks_override=32,
    )
    return Worker(resolve(settings))


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = make_worker(tmp_path)
    worker.load_model()
    worker.initialize_kv_cache(worker.determine_num_kv_blocks())
    yield worker
    worker.close()


def new(
    req_id: str, blocks: list[int], *, output: list[int] | None = None, params: SamplingParams = SAMPLED
) -> NewRequestData:
    return NewRequestData(req_id, PROMPT, output or [], params, [blocks], 0)


def step(
    worker: Worker,
    scheduled: dict[str, int],
    *,
    added: list[NewRequestData] | None = None,
    grown: dict[str, list[int]] | None = None,
    preempted: list[str] | None = None,
    finished: list[str] | None = None,
) -> dict[str, int]:
    grown = grown or {}
    cached = CachedRequestData(list(grown), [[blocks] for blocks in grown.values()])
    total = sum(scheduled.values())
    worker.execute_model(SchedulerOutput(0, added or [], cached, scheduled, total, preempted or [], finished or []))
    output = worker.sample_tokens()
    return dict(zip(output.req_ids, output.sampled_token_ids, strict=True))


def solo(worker: Worker, num_tokens: int) -> list[int]:
    """The request alone, its prompt at once, all its blocks from the start."""
    tokens = [step(worker, {"solo": len(PROMPT)}, added=[new("solo", [0, 1, 2, 3, 4])])["solo"]]
    tokens += [step(worker, {"solo": 1})["solo"] for _ in range(num_tokens - 1)]
    step(worker, {}, finished=["solo"])
    return tokens


def test_chunked_in_a_batch_and_preempted_gives_the_tokens_of_solo(worker: Worker) -> None:
    expected = solo(worker, 8)
    assert len(set(expected)) > 4

    assert step(worker, {"a": 5, "b": 3}, added=[new("a", [9, 30]), new("b", [20])]) == {}
    tokens = step(worker, {"a": 4, "b": 1}, grown={"a": [7]})
    tokens = [tokens["a"]]
    tokens.append(step(worker, {"a": 1, "b": 2}, grown={"b": [21]})["a"])
    # preempted: its blocks go to another request, and it comes back elsewhere with its output
    step(worker, {"c": 9}, added=[new("c", [9, 30, 7])], preempted=["a"])
    resumed = new("a", [11, 3, 8], output=tokens.copy())
    assert "a" not in step(worker, {"a": 6, "c": 1}, added=[resumed])
    tokens.append(step(worker, {"c": 1, "a": 5})["a"])
    for grown in ({"a": [2]}, {}, {}, {}, {"a": [1]}):
        tokens.append(step(worker, {"a": 1}, grown=grown)["a"])
    assert tokens == expected


def test_logprobs_come_with_the_tokens_of_those_that_want_them(worker: Worker) -> None:
    wants = msgspec.structs.replace(SAMPLED, logprobs=3)
    requests = [
        new("plain", [0, 1, 2]),
        new("wants", [3, 4, 5], params=wants),
        new("prefills", [6, 7, 8], params=wants),
    ]
    scheduled = {"plain": 9, "wants": 9, "prefills": 4}
    worker.execute_model(SchedulerOutput(0, requests, CachedRequestData(), scheduled, 22, [], []))
    output = worker.sample_tokens()
    assert output.sampled_token_ids[0] == output.sampled_token_ids[1]
    assert output.logprobs is not None
    assert list(output.logprobs) == ["wants"]
    found = output.logprobs["wants"]
    logprobs = [logprob for _, logprob in found.top]
    assert logprobs == sorted(logprobs, reverse=True)
    assert len(logprobs) == 3
    if found.rank <= 3:
        assert found.top[found.rank - 1] == (output.sampled_token_ids[1], found.logprob)
    else:
        assert found.logprob <= logprobs[-1]


def test_a_step_without_tokens(worker: Worker) -> None:
    assert step(worker, {}) == {}
    assert step(worker, {}, finished=["never seen"], preempted=["nor this"]) == {}


def test_tokens_are_given_once(worker: Worker) -> None:
    assert step(worker, {"a": 9}, added=[new("a", [0, 1, 2])])
    assert worker.sample_tokens().req_ids == []


def test_calls_out_of_order_say_so(tmp_path: Path) -> None:
    worker = make_worker(tmp_path)
    with pytest.raises(EngineError):
        worker.sample_tokens()
    with pytest.raises(EngineError):
        worker.memory_plan()
    with pytest.raises(EngineError):
        worker.initialize_kv_cache(4)
    worker.close()
