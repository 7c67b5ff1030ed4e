"""From the server's list of models to the report, against scripted servers and a client that is none."""

from __future__ import annotations

import json

import pytest

from headrace.bench import online
from headrace.bench.online import Load, LoadSettings, connect, make_asks, make_report, run_load
from headrace.bench.record import Record
from headrace.bench.workload import RandomLengths
from headrace.errors import StartupError
from tests.unit.bench.fake_clock import FakeClock
from tests.unit.bench.fake_server import DONE, END, OK, FakeServer, chunk, error, text, usage

MODELS = [(1.0, error(200, {"data": [{"id": "first"}, {"id": "second"}]}))]
LOADING = [(1.0, error(503, {"error": {"message": "loading"}}))]
ANSWER = [(2.0, OK), (3.0, chunk(text("Hi", "length"), usage(), DONE) + END)]
SETTINGS = LoadSettings(num_prompts=3, random_lengths=RandomLengths(input_len=5, output_len=4), seed=1)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(online, "RETRY_S", 0.0)


def model_of(server: FakeServer, **settings: object) -> str:
    async def work(http):
        return (await connect(http, LoadSettings(**settings)))[1]

    return server.run(work)


def test_a_server_that_is_loading_is_asked_again_until_it_answers():
    server = FakeServer(LOADING, MODELS, LOADING, MODELS, ANSWER)
    assert model_of(server) == "first"
    assert len(server.requests) == 5
    assert json.loads(server.requests[4].partition(b"\r\n\r\n")[2])["model"] == "first"


def test_a_model_that_is_named_is_not_looked_for():
    server = FakeServer(ANSWER)
    assert model_of(server, model="second") == "second"


def test_without_a_wait_a_server_that_is_not_there_is_an_error_at_once():
    with pytest.raises(StartupError, match=r"loading.*--base-url"):
        model_of(FakeServer(LOADING), ready_timeout_s=0.0)


@pytest.mark.parametrize(
    ("scripts", "words"),
    [
        ([[(1.0, error(401, {"error": {"message": "no"}}))]], "HEADRACE_API_KEY"),
        ([[(1.0, error(404, {"detail": "Not Found"}))]], "404"),
        ([[(1.0, error(200, {"hello": 1}))]], "no list of models"),
        ([[(1.0, error(200, {"data": []}))]], "no list of models"),
        ([MODELS, [(1.0, error(404, {"error": {"message": "no such model"}}))]], "no such model"),
    ],
)
def test_a_server_that_says_no_is_not_asked_again(scripts, words):
    with pytest.raises(StartupError, match=words):
        model_of(FakeServer(*scripts))


class FakeClient:
    """Answers after a second, and writes down what it was asked."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.asked: list[tuple[list[int], float]] = []

    def encode(self, ask):
        return ask.prompt

    async def measure(self, body, num_wanted_tokens, arrival):
        self.asked.append((body, arrival))
        sent = self.clock.now()
        await self.clock.sleep(1.0)
        now = self.clock.now()
        return Record(arrival, sent, [now], now, num_output_tokens=num_wanted_tokens, num_wanted_tokens=4)


def load(**more: object) -> tuple[FakeClient, Load]:
    settings = LoadSettings(**({name: getattr(SETTINGS, name) for name in SETTINGS.__struct_fields__} | more))
    client = FakeClient()
    return client, client.clock.run(run_load(client, settings, make_asks(settings), client.clock))


def test_warm_up_requests_are_others_and_are_over_before_the_rest():
    client, measured = load(num_warmups=2, max_concurrency=3)
    assert [arrival for _, arrival in client.asked] == [100.0, 101.0, 102.0, 102.0, 102.0]
    assert len({tuple(prompt) for prompt, _ in client.asked}) == 5
    assert len(measured.records) == 3


def test_arrivals_of_the_open_loop_are_in_the_records():
    client, measured = load(request_rate=2.0, num_prompts=50)
    arrivals = [record.arrival for record in measured.records]
    assert arrivals == sorted(arrivals) == [arrival for _, arrival in client.asked]
    assert all(record.sent == record.arrival for record in measured.records)
    assert 10 < arrivals[-1] - arrivals[0] < 50
    again = load(request_rate=2.0, num_prompts=50)[1]
    assert [record.arrival for record in again.records] == arrivals


def test_a_report_says_what_cannot_be_trusted():
    records = [
        Record(0.0, 0.5, [1.0], 2.0, num_output_tokens=3, num_wanted_tokens=4),
        Record(0.0, 0.0, [], 1.0, error="gone"),
        Record(0.0, 0.0, [], 1.0, error="gone"),
    ]
    report = make_report(SETTINGS, "m", Load(records, client_cpu_share=0.9))
    assert report.results["errors"] == {"gone": 2}
    assert report.results["client_cpu_share"] == 0.9
    assert report.results["max_send_delay_ms"] == 500.0
    shown = report.render()
    assert "failed 2 times: gone" in shown
    assert "note: the client was busy" in shown
    assert "note: 1 answers have fewer tokens" in shown
    assert "90% of a core" in shown
    assert not make_report(SETTINGS, "m", Load(records[1:], client_cpu_share=0.1)).notes


def test_messages_need_the_chat_backend(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "Hi"}]}')
    with pytest.raises(StartupError, match="openai-chat"):
        make_asks(LoadSettings(dataset_name="custom", dataset_path=str(path)))
    (ask,) = make_asks(
        LoadSettings(dataset_name="custom", dataset_path=str(path), backend="openai-chat", num_prompts=1)
    )
    assert ask.is_chat
