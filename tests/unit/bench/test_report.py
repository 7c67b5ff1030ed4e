"""Files that a run leaves, and how a server's table of phases is read."""

from __future__ import annotations

import json

from headrace import __version__
from headrace.bench.plot import draw
from headrace.bench.record import Record
from headrace.bench.report import Report, changed_settings
from headrace.bench.startup import Phase, Start, parse_phases, phases_of, summarize_phase
from headrace.config.cpu import cpu_model, usable_cores
from headrace.config.engine_config import EngineConfig
from headrace.contracts.lifecycle import Phase as ServerPhase
from headrace.launch import phase_table

RECORDS = [
    Record(10.0, 10.5, [11.0, 12.0], 12.0, 3, 0, 2, 2, "length", 200),
    Record(11.0, 11.0, [], 11.5, error="gone"),
]


def report(benchmark: str = "serve", results: dict | None = None) -> Report:
    return Report(
        benchmark=benchmark, settings={"a": 1}, results=results or {"b": 2.5}, lines=["m at u", "", "x"], kernels="amx",
        records=RECORDS,
    )  # fmt: skip


def test_a_file_says_what_ran_where_and_when(tmp_path):
    path = tmp_path / "out.json"
    report().write_json(path, ["headrace", "bench", "serve"], with_records=True)
    found = json.loads(path.read_text())
    assert found["schema"] == 1
    assert found["benchmark"] == "serve"
    assert found["command"] == ["headrace", "bench", "serve"]
    assert found["date"].endswith("+00:00")
    assert found["settings"] == {"a": 1}
    assert found["results"] == {"b": 2.5}
    environment = found["environment"]
    assert environment["cpu"] == cpu_model()
    assert environment["cores"] == usable_cores()
    assert environment["kernels"] == "amx"
    assert environment["headrace"] == __version__
    assert environment["packages"]["numpy"]
    first, second = found["records"]
    assert (first["arrival"], first["sent"], first["text_times"], first["finished"]) == (0.0, 0.5, [1.0, 2.0], 2.0)
    assert second["error"] == "gone"


def test_records_are_only_written_where_they_are_wanted(tmp_path):
    path = tmp_path / "out.json"
    report().write_json(path, [])
    assert "records" not in json.loads(path.read_text())


def test_pictures(tmp_path):
    phases = [{"process": "api-0", "phase": "imports", "began": 0.0, "ended": 1.0, "took": 1.0}]
    for made in (report(), report("latency"), report("startup", {"phases": phases})):
        path = tmp_path / f"{made.benchmark}.png"
        draw(made, path)
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_run_without_an_answer_has_a_picture(tmp_path):
    made = report()
    made.records = RECORDS[1:]
    draw(made, tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 1000


def test_settings_are_those_that_are_not_the_default():
    assert changed_settings(EngineConfig(model="m", max_num_seqs=3)) == {"model": "m", "max_num_seqs": 3}


def test_phases_are_read_as_the_launcher_prints_them():
    phases = [ServerPhase("api-0", "interpreter, imports", 5.0, 6.25), ServerPhase("core-0", "load model", 5.5, 7.0)]
    printed = "\n".join(f"headrace: {line}" for line in phase_table(phases, 5.0))
    assert parse_phases(f"noise\n{printed}\nheadrace: m is ready at http://127.0.0.1:1/v1") == [
        Phase("api-0", "interpreter, imports", 0.0, 1.25),
        Phase("core-0", "load model", 0.5, 2.0),
    ]


def test_a_phase_is_summarized_by_its_medians():
    starts = [Start(1.0, [Phase("a", "x", began, began + took)]) for began, took in [(1, 1), (2, 5), (3, 2)]]
    starts.append(Start(1.0, [Phase("b", "x", 0.0, 1.0)]))
    assert phases_of(starts) == [("a", "x"), ("b", "x")]
    assert summarize_phase(("a", "x"), starts) == {
        "process": "a",
        "phase": "x",
        "began": 2,
        "ended": 5,
        "took": 2,
    }
