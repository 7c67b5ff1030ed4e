"""Rules about our own source that no linter knows, read from the syntax tree, without importing anything."""

import ast
from pathlib import Path

import pytest

# These run code that comes in as data.
LOADS_CODE = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}
RUNS_TEXT = {"eval", "exec", "compile"}
# Heavy: seconds to import, gigabytes to install.
ONLY_IN_TORCH_BACKEND = {"torch", "transformers"}
TORCH_BACKEND = "headrace/backends/torch/"
# Names that say nothing about what is inside.
VAGUE = {"util", "utils", "helper", "helpers", "misc", "common", "base"}


def imported_packages(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        return {node.module.split(".")[0]}
    return set()


def called_builtin(node: ast.AST) -> str | None:
    """`eval` for eval(...) and builtins.eval(...), but None for re.compile(...)."""
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name
        case ast.Call(func=ast.Attribute(value=ast.Name(id="builtins"), attr=name)):
            return name
    return None


def allows_pickle(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and any(
        k.arg == "allow_pickle" and not (isinstance(k.value, ast.Constant) and k.value.value is False)
        for k in node.keywords
    )


def broken_rules(source: str, path: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source, path)):
        packages = imported_packages(node)
        place = f"{path}:{getattr(node, 'lineno', 0)}"
        found += [f"{place}: imports {name}" for name in sorted(packages & LOADS_CODE)]
        if not path.startswith(TORCH_BACKEND):
            found += [f"{place}: imports {name}" for name in sorted(packages & ONLY_IN_TORCH_BACKEND)]
        if (name := called_builtin(node)) in RUNS_TEXT:
            found.append(f"{place}: calls {name}")
        if allows_pickle(node):
            found.append(f"{place}: allows pickle")
        if isinstance(node, ast.Assert):
            found.append(f"{place}: asserts, and python -O would drop it: raise from headrace/errors.py")
    return found


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("import pickle", "imports pickle"),
        ("from shelve import open", "imports shelve"),
        ("def f():\n    import marshal.x as m", "imports marshal"),
        ("import torch.nn as nn", "imports torch"),
        ("from transformers import AutoModel", "imports transformers"),
        ("x = eval('1')", "calls eval"),
        ("import builtins\nbuiltins.exec('1')", "calls exec"),
        ("compile('1', '', 'eval')", "calls compile"),
        ("np.load(f, allow_pickle=True)", "allows pickle"),
        ("assert x", "asserts"),
    ],
)
def test_each_rule_finds_its_fault(source: str, finding: str) -> None:
    (found,) = broken_rules(source, "headrace/example.py")
    assert finding in found


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("import re\nre.compile('x')\nmodel.eval()", "headrace/example.py"),
        ("np.load(f, allow_pickle=False)", "headrace/example.py"),
        ("from . import torch", "headrace/backends/__init__.py"),
        ("import torch", "headrace/backends/torch/ops.py"),
    ],
)
def test_lawful_source_passes(source: str, path: str) -> None:
    assert broken_rules(source, path) == []


def test_source_keeps_the_rules(repository: Path) -> None:
    files = sorted((repository / "headrace").rglob("*.py"))
    assert files
    found = [
        finding for file in files for finding in broken_rules(file.read_text(), file.relative_to(repository).as_posix())
    ]
    assert found == []


def test_names_say_what_is_inside(repository: Path) -> None:
    paths = [p for p in (repository / "headrace").rglob("*") if p.is_dir() or p.suffix == ".py"]
    assert [str(p.relative_to(repository)) for p in paths if p.stem in VAGUE] == []
