"""The synchronous engine, step by step, over an engine core in memory."""

from __future__ import annotations

import pytest

from headrace.contracts.engine import EngineCoreOutputs
from headrace.contracts.sampling_params import OutputKind, SamplingParams
from headrace.errors import EngineDeadError, InvalidParameterError, KVCapacityError
from headrace.frontend.llm_engine import LLMEngine
from tests.unit.frontend.test_llm import EchoEngine


class DyingEngine(EchoEngine):
    def get_output(self) -> EngineCoreOutputs:
        raise EngineDeadError("headrace-core-0 was killed by SIGKILL")


@pytest.fixture
def core():
    return EchoEngine()


@pytest.fixture
def engine(input_processor, core):
    return LLMEngine.over(input_processor, core)


def run(engine: LLMEngine) -> list:
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def texts(engine: LLMEngine, kind: OutputKind) -> list[str]:
    engine.add_request("r", "one two three", SamplingParams(output_kind=kind))
    return [output.outputs[0].text for output in run(engine)]


def test_each_step_brings_what_the_output_kind_says(engine):
    assert texts(engine, OutputKind.CUMULATIVE) == ["one", "one two", "one two three"]
    assert texts(engine, OutputKind.DELTA) == ["one", " two", " three"]
    assert texts(engine, OutputKind.FINAL_ONLY) == ["one two three"]


def test_requests_are_counted_until_their_last_output(engine):
    assert engine.get_num_unfinished_requests() == 0
    assert engine.step() == []
    engine.add_request("a", [40, 41])
    engine.add_request("b", [42])
    assert engine.get_num_unfinished_requests() == 2
    outputs = run(engine)
    assert {output.request_id: output.finished for output in outputs} == {"a": True, "b": True}
    assert (engine.get_num_unfinished_requests(), engine.has_unfinished_requests()) == (0, False)


def test_choices_of_one_request_end_it_together(engine):
    engine.add_request("r", "one two", SamplingParams(n=3))
    finished = [output for output in run(engine) if output.finished]
    assert len(finished) == 1
    assert len({output.request_id for output in finished}) == 1


def test_an_aborted_request_has_no_more_outputs(engine, core):
    engine.add_request("a", "one two three")
    engine.add_request("b", "four five")
    engine.step()
    engine.abort_request(["b", "unknown"])
    assert len(core.aborted) == 1
    assert {output.request_id for output in run(engine)} == {"a"}
    engine.abort_request("a")  # over, and not taken for a list of letters
    assert len(core.aborted) == 1


def test_an_id_may_come_again_when_it_is_over(engine):
    engine.add_request("r", "one")
    with pytest.raises(InvalidParameterError, match="'r' is under way"):
        engine.add_request("r", "two")
    assert [output.outputs[0].text for output in run(engine)] == ["one"]
    engine.add_request("r", "two")
    assert [output.outputs[0].text for output in run(engine)] == ["two"]


def test_a_request_that_fails_says_so_and_the_others_go_on(input_processor):
    engine = LLMEngine.over(input_processor, EchoEngine(refuses=41))
    engine.add_request("good", [40, 40])
    engine.add_request("bad", [41], SamplingParams(n=2))
    outputs = {output.request_id: output for output in run(engine)}
    assert isinstance(outputs["bad"].error, KVCapacityError)
    assert outputs["bad"].finished
    assert outputs["good"].error is None
    assert outputs["good"].outputs[0].token_ids == [40, 40]


def test_the_engines_death_ends_every_request(input_processor):
    engine = LLMEngine.over(input_processor, DyingEngine())
    engine.add_request("r", "one")
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        engine.step()
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize("request_id", ["", 5, None])
def test_a_request_without_a_name_is_refused(engine, request_id):
    with pytest.raises(InvalidParameterError, match="not empty") as refusal:
        engine.add_request(request_id, "one")
    assert refusal.value.param == "request_id"
