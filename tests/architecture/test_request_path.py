"""docs/request-path.md walks a request through the source; here it is held to what the source says today.

The page names a place as `headrace/core/engine_core.py::EngineCore.step`, and a file or folder by its path alone.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PLACE = re.compile(r"`(headrace/[\w./-]*)(?:::([\w.]+))?(?:\(\))?`")
MIN_PLACES = 15


def named_places(page: str) -> list[tuple[str, str | None]]:
    """(path, qualified name or None), in the page's order, each once."""
    return list(dict.fromkeys((m[1], m[2]) for m in PLACE.finditer(page)))


def definitions(body: list[ast.stmt]) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Names that these statements define, with what is inside them; `if`, `try` and `with` are looked through."""
    for node in body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.body
            case ast.Assign(targets=targets):
                yield from ((t.id, []) for t in targets if isinstance(t, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, []
            case _:
                for field in ("body", "orelse", "finalbody"):
                    yield from definitions(getattr(node, field, []))


def defines(source: str, qualified_name: str) -> bool:
    bodies = [ast.parse(source).body]
    for part in qualified_name.split("."):
        bodies = [inside for body in bodies for name, inside in definitions(body) if name == part]
    return bool(bodies)


def gone(page: str, root: Path) -> list[str]:
    """The places that the page names and the source no longer has."""
    missing = []
    for path, name in named_places(page):
        file = root / path
        if name is None:
            if not file.exists():
                missing.append(path)
        elif not file.is_file() or not defines(file.read_text(), name):
            missing.append(f"{path}::{name}")
    return missing


def test_every_place_is_still_there(repository: Path) -> None:
    page = (repository / "docs" / "request-path.md").read_text()
    assert gone(page, repository) == []
    assert sum(name is not None for _, name in named_places(page)) >= MIN_PLACES


SOURCE = """
LIMIT = 3
class Engine:
    depth: int = 1
    if LIMIT:
        async def step(self):
            def inner(): ...
def run(): ...
"""


@pytest.mark.parametrize(
    ("place", "there"),
    [
        ("headrace/a.py", True),
        ("headrace/", True),
        ("headrace/b.py", False),
        ("headrace/a.py::run", True),
        ("headrace/a.py::LIMIT", True),
        ("headrace/a.py::Engine", True),
        ("headrace/a.py::Engine.step", True),
        ("headrace/a.py::Engine.step()", True),
        ("headrace/a.py::Engine.step.inner", True),
        ("headrace/a.py::Engine.depth", True),
        ("headrace/a.py::Engine.run", False),
        ("headrace/a.py::step", False),
        ("headrace/b.py::run", False),
    ],
)
def test_a_place_that_is_gone_is_found(tmp_path: Path, place: str, there: bool) -> None:
    (tmp_path / "headrace").mkdir()
    (tmp_path / "headrace" / "a.py").write_text(SOURCE)
    missing = gone(f"First `{place}`, then `elsewhere.py::x`.", tmp_path)
    assert missing == ([] if there else [place])
