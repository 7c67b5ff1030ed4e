"""From the engine core's outputs to what readers get."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from types import SimpleNamespace

import msgspec
import pytest

from headrace.contracts.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, FinishReason
from headrace.contracts.sampling_params import OutputKind, SamplingParams
from headrace.errors import ContextLengthError, EngineError, KVCapacityError
from headrace.frontend.iteration_stats import IterationStats
from headrace.frontend.output_collector import RequestOutputCollector
from headrace.frontend.output_processor import OutputProcessor, queue_times
from headrace.frontend.request_output import CompletionOutput, RequestOutput

EOS = 2


class Bench:
    """An output processor with one request under way."""

    def __init__(self, input_processor, **params) -> None:
        self.tokenizer = input_processor.tokenizer
        self.params = SamplingParams(**{"output_kind": OutputKind.DELTA, **params})
        self.prepared = input_processor.process("Hi", self.params, "label")
        self.processor = OutputProcessor(self.tokenizer)
        self.collector = RequestOutputCollector(self.params.output_kind)
        self.state = self.processor.add_request(self.prepared, self.collector)
        self.stats = IterationStats()
        self.ids = [request.request_id for request in self.prepared.core_requests]

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def feed(self, first_index: int, tokens: list[int], finish=None, *, choice: int = 0, **fields) -> list[str]:
        output = EngineCoreOutput(self.ids[choice], first_index, tokens, finish, **fields)
        return self.processor.process_outputs([output], self.stats)

    def take(self) -> CompletionOutput:
        output = self.collector.take()
        assert output is not None
        (choice,) = output.outputs
        return choice


@pytest.fixture
def bench(input_processor):
    return lambda **params: Bench(input_processor, **params)


@pytest.fixture
def without_collector():
    gc.disable()
    yield
    gc.enable()


def test_deltas_carry_what_is_new(bench):
    b = bench()
    tokens = b.encode("Hello there")
    b.feed(0, tokens[:1])
    assert b.take() == CompletionOutput(0, "Hello", tokens[:1])
    b.feed(1, tokens[1:], FinishReason.LENGTH)
    assert b.take() == CompletionOutput(0, " there", tokens[1:], "length")
    assert not b.processor.has_unfinished_requests


def test_the_three_output_kinds_tell_the_same_story(bench):
    told = {}
    for kind in OutputKind:
        b = bench(output_kind=kind, stop=("never",))
        tokens = [*b.encode("The 漢字 never"[:-2]), EOS]
        texts, ids = [], []
        for index, token in enumerate(tokens):
            b.feed(index, [token], FinishReason.STOP if token == EOS else None)
            output = b.collector.take()
            if output is not None:
                texts.append(output.outputs[0].text)
                ids.append(output.outputs[0].token_ids)
        is_delta = kind is OutputKind.DELTA
        told[kind] = ("".join(texts), [token for new in ids for token in new]) if is_delta else (texts[-1], ids[-1])
        assert len(texts) == (1 if kind is OutputKind.FINAL_ONLY else len(tokens))
    assert told[OutputKind.DELTA] == told[OutputKind.CUMULATIVE] == told[OutputKind.FINAL_ONLY]
    assert told[OutputKind.DELTA][0] == "The 漢字 nev"


def test_a_slow_reader_finds_everything_in_one_output(bench):
    b = bench()
    tokens = b.encode("one two three four")
    for index, token in enumerate(tokens):
        b.feed(index, [token], FinishReason.LENGTH if index == len(tokens) - 1 else None)
    assert b.take() == CompletionOutput(0, "one two three four", tokens, "length")
    assert b.collector.take() is None


def test_the_token_that_ended_it_counts_but_is_no_text(bench):
    b = bench()
    word = b.encode(" end")
    b.feed(0, [*b.encode("The"), *word], FinishReason.STOP, stop_reason=word[0])
    output = b.take()
    assert (output.text, output.stop_reason, len(output.token_ids)) == ("The", word[0], 2)


def test_c12_a_special_token_that_ended_it_takes_no_text_with_it(bench):
    b = bench(skip_special_tokens=True)
    b.feed(0, [*b.encode("The end"), EOS], FinishReason.STOP)
    assert b.take().text == "The end"


def test_the_token_that_ended_it_is_text_if_asked_for(bench):
    b = bench(include_stop_str_in_output=True, skip_special_tokens=False)
    b.feed(0, [*b.encode("The"), EOS], FinishReason.STOP)
    assert b.take().text == "The<|im_end|>"


def test_a_stop_string_ends_the_request_here_and_in_the_engine(bench):
    b = bench(stop=("three",))
    tokens = b.encode("one two three four")
    assert b.feed(0, tokens) == b.ids
    output = b.take()
    assert (output.text, output.finish_reason, output.stop_reason) == ("one two ", "stop", "three")
    assert output.token_ids == tokens[:3]  # nothing after the stop, however the tokens came
    assert b.feed(4, [EOS], FinishReason.STOP) == []
    assert b.processor.num_dropped_outputs == 1


def test_a_stop_string_in_the_last_token_needs_no_abort(bench):
    b = bench(stop=("two",))
    assert b.feed(0, b.encode("one two"), FinishReason.LENGTH) == []
    output = b.take()
    assert (output.text, output.finish_reason, output.stop_reason) == ("one ", "stop", "two")


def test_c07_what_was_held_back_comes_with_any_other_end(bench):
    b = bench(stop=("two three",))
    b.feed(0, b.encode("one two"), FinishReason.LENGTH)
    output = b.take()
    assert (output.text, output.finish_reason, output.stop_reason) == ("one two", "length", None)


def test_c03_a_character_that_is_cut_off_is_flushed(bench):
    b = bench()
    b.feed(0, b.encode("漢")[:-1], FinishReason.LENGTH)
    assert b.take().text == "\ufffd"


def test_without_detokenizing_there_are_only_ids(bench):
    b = bench(detokenize=False)
    b.feed(0, [5, 6], FinishReason.LENGTH)
    assert b.take() == CompletionOutput(0, "", [5, 6], "length")


def test_h03_outputs_for_unknown_ids_are_counted_and_dropped(bench):
    b = bench()
    assert b.processor.abort_request(b.state, b.stats) == b.ids
    assert b.processor.abort_request(b.state, b.stats) == []
    assert b.feed(0, [5]) == []
    assert b.processor.num_dropped_outputs == 1
    assert b.collector.take() is None


def test_tokens_that_are_known_already_are_dropped(bench):
    b = bench()
    b.feed(0, [40, 41])
    b.feed(0, [40, 41])
    b.feed(1, [41, 42])
    assert b.take().token_ids == [40, 41, 42]
    assert b.stats.num_generation_tokens == 3


def test_a_gap_is_an_error_of_that_request(bench):
    b = bench(n=2)
    b.feed(0, [40], choice=1)
    assert sorted(b.feed(3, [40])) == b.ids
    assert b.take().index == 1  # what came before is not lost
    with pytest.raises(EngineError, match="lost"):
        b.collector.take()
    assert not b.processor.has_unfinished_requests


def test_a_request_that_has_ended_is_gone_at_once(bench, without_collector):
    """With its prompt: the API server looks for cycles only now and then."""
    b = bench(n=2)
    state, b.state = weakref.ref(b.state), None
    b.feed(0, [40], FinishReason.LENGTH)
    assert state() is not None
    b.feed(0, [40], FinishReason.LENGTH, choice=1)
    assert state() is None


@pytest.mark.parametrize("finish", [None, FinishReason.LENGTH])
def test_b10_a_fault_in_one_answer_is_nobody_elses(bench, input_processor, finish, caplog, monkeypatch):
    b = bench(n=2)
    other = RequestOutputCollector(OutputKind.DELTA)
    prepared = input_processor.process("Hi", b.params, "other")
    b.processor.add_request(prepared, other)

    def fail(text: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(b.processor.open_choices(b.state)[0], "_stop_matcher", SimpleNamespace(feed=fail))
    hello = b.encode("Hello")
    outputs = [
        EngineCoreOutput(b.ids[0], 0, hello, finish),
        EngineCoreOutput(prepared.core_requests[0].request_id, 0, hello),
    ]
    assert set(b.processor.process_outputs(outputs, b.stats)) == set(b.ids)
    with pytest.raises(EngineError):
        b.take()
    assert "ZeroDivisionError" in caplog.text
    news = other.take()
    assert news is not None
    assert news.outputs[0].text == "Hello"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("kv_capacity_exceeded", KVCapacityError),
        ("context_length_exceeded", ContextLengthError),
        (None, EngineError),
        ("unheard_of", EngineError),
    ],
)
def test_an_error_of_the_engine_becomes_the_error_that_it_names(bench, code, kind):
    b = bench(n=2)
    assert b.feed(0, [], FinishReason.ERROR, error_code=code, error_message="Why.") == b.ids
    with pytest.raises(kind, match=r"^Why\.$") as caught:
        b.collector.take()
    assert type(caught.value) is kind


def test_all_choices_come_together_at_the_end(bench):
    b = bench(n=3, output_kind=OutputKind.FINAL_ONLY)
    for choice in (2, 0):
        b.feed(0, [40 + choice], FinishReason.LENGTH, choice=choice)
        assert b.collector.take() is None
    b.feed(0, [41], FinishReason.LENGTH, choice=1, num_cached_tokens=16)
    output = b.collector.take()
    assert [(choice.index, choice.token_ids) for choice in output.outputs] == [(0, [40]), (1, [41]), (2, [42])]
    assert (output.request_id, output.finished, output.num_cached_tokens) == ("label", True, 16)


def test_numbers_of_what_happened(bench):
    b = bench()
    b.feed(0, [40])
    b.feed(1, [41, 42], FinishReason.LENGTH)
    assert (b.stats.num_prompt_tokens, b.stats.num_generation_tokens) == (len(b.prepared.prompt_token_ids), 3)
    assert (len(b.stats.times_to_first_token), len(b.stats.inter_token_latencies)) == (1, 1)
    (finished,) = b.stats.finished
    assert (finished.finish_reason, finished.num_generation_tokens) == (FinishReason.LENGTH, 3)
    assert finished.decode_time >= 0
    assert finished.prefill_time is None  # the engine has not said when it began


def test_the_time_of_a_request_is_its_prefill_and_its_decode(bench):
    b = bench()
    now = time.monotonic()  # not before the request has come: what lies between would be no part of its time
    first, again = (EngineCoreEvent(EngineCoreEventType.SCHEDULED, now - seconds) for seconds in (7, 2))
    b.feed(0, [40], events=[first])
    b.feed(1, [41], FinishReason.LENGTH, events=[again])  # it was preempted, and started once more
    (finished,) = b.stats.finished
    assert 7 <= finished.prefill_time <= 7 + finished.e2e_latency
    assert 0 <= finished.decode_time <= finished.e2e_latency


def test_j11_a_request_without_a_token_has_no_times_but_its_own(bench):
    b = bench()
    b.processor.abort_request(b.state, b.stats)
    (finished,) = b.stats.finished
    assert (finished.prefill_time, finished.decode_time) == (None, None)


def test_a_reader_that_waits_is_woken_and_hears_the_error_last():
    def news(text: str) -> RequestOutput:
        return RequestOutput("r", None, [], [CompletionOutput(0, text, [1])], False)

    async def scenario() -> None:
        collector = RequestOutputCollector(OutputKind.DELTA)
        waiting = asyncio.ensure_future(collector.get())
        await asyncio.sleep(0)
        collector.put(news("a"))
        assert (await waiting).outputs[0].text == "a"
        collector.put(news("b"))
        collector.put(msgspec.structs.replace(news("c"), finished=True))
        collector.fail(EngineError("gone"))
        merged = await collector.get()
        assert (merged.outputs[0].text, merged.finished) == ("bc", True)
        with pytest.raises(EngineError):
            await collector.get()

    asyncio.run(scenario())


def test_queue_time_is_told_by_the_events():
    queued, started = (
        EngineCoreEvent(EngineCoreEventType.QUEUED, 10.0),
        EngineCoreEvent(EngineCoreEventType.SCHEDULED, 12.5),
    )
    again = EngineCoreEvent(EngineCoreEventType.SCHEDULED, 20.0)
    assert queue_times([queued, started]) == [2.5]
    assert queue_times([queued, started, again]) == [2.5]
    assert queue_times([again]) == []
