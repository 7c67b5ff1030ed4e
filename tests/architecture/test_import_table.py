"""The table "who may import whom" itself; `make check` holds the source to it (lint-imports)."""

from pathlib import Path

import pytest
from grimp import ImportGraph
from importlinter import fields

from tests.architecture.import_table import ANY, ImportTable, configured_lines, may_import, parse

# The architecture's table. It stands here a second time, so that nobody widens a right in pyproject.toml in passing.
TABLE = {
    "errors": set(),
    "contracts": {"errors"},
    "formats": {"errors"},
    "config": {"contracts", "formats", "errors"},
    "ipc": {"contracts", "errors"},
    "frontend": {"contracts", "config", "ipc", "formats", "errors"},
    "core": {"contracts", "config", "ipc", "errors"},
    "worker": {"contracts", "config", "ipc", "model", "errors"},
    "model": {"formats", "config.model_facts", "errors"},
    "backends": {"model.ops", "errors"},
    "bench": {"config", "contracts", "frontend", "backends.native.extension", "errors"},
    "launch": ANY,
    "cli": ANY,
    "simulation": ANY,
}


@pytest.fixture(scope="module")
def configured(repository: Path) -> list[str]:
    return configured_lines(repository)


def check(lines: list[str], imports: list[tuple[str, str]]) -> tuple[bool, dict]:
    graph = ImportGraph()
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported, line_number=7, line_contents="import it")
    result = ImportTable("name", {}, {"may_import": lines}).check(graph, verbose=False)
    return result.kept, result.metadata


def test_configuration_is_the_architecture_table(configured: list[str]) -> None:
    assert parse(configured) == TABLE


def test_every_folder_has_a_line(repository: Path, configured: list[str]) -> None:
    package = repository / "headrace"
    folders = {p.parent.name for p in package.glob("*/*.py")} | {p.stem for p in package.glob("*.py")}
    assert folders - {"__init__", "__main__"} <= parse(configured).keys()


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("headrace.core.sched.scheduler", "headrace.contracts.scheduler", True),
        ("headrace.core.sched.scheduler", "headrace.core.request", True),
        ("headrace.core.sched.scheduler", "headrace.worker.worker", False),
        ("headrace.core.engine_core", "headrace.formats.gguf", False),
        ("headrace.model.registry", "headrace.config.model_facts", True),
        ("headrace.model.registry", "headrace.config", False),
        ("headrace.model.registry", "headrace.config.model_facts_of_others", False),
        ("headrace.backends.numpy.ops", "headrace.model.ops", True),
        ("headrace.backends.numpy.ops", "headrace.model.registry", False),
        ("headrace.errors", "headrace.contracts.codec", False),
        ("headrace.frontend.llm", "headrace", True),
        ("headrace", "headrace.frontend.llm", True),
        ("headrace.__main__", "headrace.cli", True),
        ("headrace.cli.serve", "headrace.core.engine_core_proc", True),
        ("headrace.frontend.llm", "headrace.cli.serve", False),
    ],
)
def test_rights(configured: list[str], importer: str, imported: str, allowed: bool) -> None:
    assert may_import(parse(configured), importer, imported) is allowed
    assert check(configured, [(importer, imported)])[0] is allowed


def test_a_broken_import_is_named_with_its_line(configured: list[str]) -> None:
    kept, found = check(configured, [("headrace.core.a", "headrace.worker.b"), ("headrace.core.a", "headrace.ipc.c")])
    assert not kept
    assert found["broken"] == [("headrace.core.a", "headrace.worker.b", [7])]


def test_a_new_folder_needs_a_line(configured: list[str]) -> None:
    kept, found = check(configured, [("headrace.plumbing.a", "headrace.plumbing.b")])
    assert not kept
    assert found["unlisted"] == ["plumbing"]


def test_a_line_without_rights_is_refused() -> None:
    with pytest.raises(fields.ValidationError):
        parse(["core"])
