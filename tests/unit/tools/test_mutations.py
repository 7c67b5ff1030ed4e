"""The mistakes that `make mutants` makes: the right ones, and none where no test could see them."""

import ast
from pathlib import Path

import pytest

from tools.mutants import MUTATED, choose_mutants
from tools.mutations import mutants_of

ROOT = Path(__file__).resolve().parents[3]


def changes(line: str) -> set[str]:
    """What becomes of a line in a function."""
    source = f"def f(a, b, c):\n    {line}\n"
    return {mutant.after for mutant in mutants_of(source, "f.py")}


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("x = a < b", {"x = a <= b", "x = a >= b"}),
        ("x = a is b", {"x = a is not b"}),
        ("x = a not in b", {"x = a in b"}),
        ("x = a < b <= c", {"x = a <= b <= c", "x = a >= b <= c", "x = a < b < c", "x = a < b > c"}),
        ("x = a and b", {"x = (a or b)", "x = a", "x = b"}),
        ("x = not a", {"x = a"}),
        ("x = a * (b + c)", {"x = (a + (b + c))", "x = a * ((b - c))"}),
        ("x = 0", {"x = 1"}),
        ("x = 3", {"x = 4", "x = 2"}),
        ("x = True", {"x = False"}),
        ("x = a if b else c", {"x = a", "x = c"}),
        ("x = min(a, b)", {"x = max(a, b)"}),
        ("x = sorted(a)", {"x = a"}),
        ("x = a[b:c]", {"x = a[:c]", "x = a[b:]"}),
        ("x = a(b, c)", {"x = a(c, b)"}),
        ("a(b)", {"pass"}),
        ("a.x = b", {"pass"}),
        ("a.x += b", {"pass", "a.x -= b"}),
        ("del a[b]", {"pass"}),
        ("return a", {"return None"}),
        ("raise a(1 + 1)", {"pass"}),
    ],
)
def test_mistakes(line, after):
    assert changes(line) == after


@pytest.mark.parametrize(
    "line",
    [
        "'a docstring'",
        "x: tuple[int, 3]",
        "x = 'text'",
        "x = f'{a + b}'",
        "x = a(b)",
        "from a import b",
        "x = a + 'text'",
        "x = [a] + b",
    ],
)
def test_nothing_where_no_test_could_see_it_or_every_test_would(line):
    assert changes(line) == set()


@pytest.mark.parametrize(
    "method",
    [
        "def __init__(self, a):\n  self.a = a",
        "def __repr__(self):\n  return a + b",
        "def f(self, a: b[1] = c) -> d[1]:\n  x: e[1] = a",
    ],
)
def test_nothing_in_repr_in_annotations_or_in_what_init_sets(method):
    assert list(mutants_of(f"class A:\n {method}\n", "a.py")) == []


def test_the_choice_depends_on_seed_and_text_alone():
    first, again, other = (choose_mutants(ROOT, 50, seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert len({(m.path, m.line) for m in first}) == 50
    for mutant in first:
        assert mutant.path.startswith(MUTATED)
        assert mutant.before != mutant.after
        ast.parse(mutant.source)
        changed = [
            (old, new)
            for old, new in zip((ROOT / mutant.path).read_text().splitlines(), mutant.source.splitlines(), strict=True)
            if old != new
        ]
        assert [(old.strip(), new.strip()) for old, new in changed] == [(mutant.before, mutant.after)]
