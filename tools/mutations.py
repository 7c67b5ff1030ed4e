"""One-line mutations of Python source, made from its syntax tree: the small mistakes that a person makes too.

A comparison that is off by one or turned round, `and` for `or`, a lost `not`, a constant one too high, a statement
forgotten, arguments swapped, a condition that always holds, a return value lost. Never in what only people read
(docstrings, annotations, error messages, `__repr__`), and none of which every test falls over: an attribute that
`__init__` does not set says nothing about the tests.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
ORDERS = {"reversed", "sorted"}  # the call is left away
SYMMETRIC = {"min", "max", "zip"}  # swapped arguments change nothing, or the names that they are unpacked to
FORGETTABLE = (ast.Expr, ast.AugAssign, ast.Delete, ast.Raise, ast.Break, ast.Continue)
ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Constant, ast.Subscript, ast.Slice, ast.Compare)

Node = ast.expr | ast.stmt
N = TypeVar("N", bound=ast.AST)


class Mutant(NamedTuple):
    path: str
    line: int
    function: str  # where it is, as Class.method
    before: str  # the line
    after: str
    source: str  # the whole file, mutated


def mutants_of(source: str, path: str) -> Iterator[Mutant]:
    """All mutants of one file, in the order of its lines."""
    lines = source.splitlines(keepends=True)
    for node, function, text in _edits(ast.parse(source), ()):
        before = lines[node.lineno - 1]
        raw = before.encode()
        after = (raw[: node.col_offset] + text.encode() + raw[node.end_col_offset :]).decode()
        mutated = "".join([*lines[: node.lineno - 1], after, *lines[node.lineno :]])
        yield Mutant(path, node.lineno, function, before.strip(), after.strip(), mutated)


def _edits(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[Node, str, str]]:
    """What to put in the place of which node, and in which function that is."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        if node.name == "__repr__":
            return
        scope = (*scope, node.name)
    if isinstance(node, ast.expr | ast.stmt) and node.lineno == node.end_lineno:
        for text in _replacements(node, scope):
            yield node, ".".join(scope), text
    for child in _code_in(node):
        yield from _edits(child, scope)


def _code_in(node: ast.AST) -> Iterator[ast.AST]:
    """The children that run, and not for people only."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "bases", "type_comment"}:
            continue
        yield from (v for v in (value if isinstance(value, list) else [value]) if isinstance(v, ast.AST))


def _replacements(node: Node, scope: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, ast.stmt):
        yield from _statement(node, scope)
        return
    for changed in MUTATIONS.get(type(node), _nothing)(node):
        text = ast.unparse(changed)
        yield text if isinstance(changed, ATOMS) else f"({text})"


def _statement(node: ast.stmt, scope: tuple[str, ...]) -> Iterator[str]:
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    stores = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    if (isinstance(node, FORGETTABLE) and not is_docstring) or (stores and scope[-1:] != ("__init__",)):
        yield "pass"
    match node:
        case ast.Return(value=None):
            yield "pass"
        case ast.Return(value=value) if not isinstance(value, ast.Constant):
            yield "return None"
        case ast.Break():
            yield "continue"
        case ast.Continue():
            yield "break"
        case ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield ast.unparse(_with(node, op=ARITHMETIC[type(op)]()))


def _compare(node: ast.Compare) -> Iterator[ast.expr]:
    for i, op in enumerate(node.ops):
        for flipped in COMPARISONS[type(op)]:
            yield _with(node, ops=[*node.ops[:i], flipped(), *node.ops[i + 1 :]])


def _and_or(node: ast.BoolOp) -> Iterator[ast.expr]:
    yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    for i in range(len(node.values)):
        rest = [*node.values[:i], *node.values[i + 1 :]]
        yield rest[0] if len(rest) == 1 else _with(node, values=rest)


def _unary(node: ast.UnaryOp) -> Iterator[ast.expr]:
    yield node.operand


def _arithmetic(node: ast.BinOp) -> Iterator[ast.expr]:
    if type(node.op) in ARITHMETIC and not (_is_text(node.left) or _is_text(node.right)):
        yield _with(node, op=ARITHMETIC[type(node.op)]())


def _constant(node: ast.Constant) -> Iterator[ast.expr]:
    match node.value:
        case bool(value):
            yield ast.Constant(not value)
        case int(value) | float(value):
            yield ast.Constant(value + 1)
            if value > 0:
                yield ast.Constant(value - 1)


def _choice(node: ast.IfExp) -> Iterator[ast.expr]:
    yield node.body
    yield node.orelse


def _slice(node: ast.Slice) -> Iterator[ast.expr]:
    if node.lower is not None:
        yield _with(node, lower=None)
    if node.upper is not None:
        yield _with(node, upper=None)


def _call(node: ast.Call) -> Iterator[ast.expr]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in OPPOSITES:
        yield _with(node, func=ast.Name(OPPOSITES[name]))
    if name in ORDERS:
        yield node.args[0]
    if name in SYMMETRIC:
        return
    for i, (left, right) in enumerate(zip(node.args, node.args[1:], strict=False)):
        if ast.dump(left) != ast.dump(right) and not isinstance(left, ast.Starred):
            yield _with(node, args=[*node.args[:i], right, left, *node.args[i + 2 :]])


def _nothing(node: ast.expr) -> Iterator[ast.expr]:
    return iter(())


MUTATIONS: dict[type[ast.AST], Callable[..., Iterator[ast.expr]]] = {
    ast.Compare: _compare,
    ast.BoolOp: _and_or,
    ast.UnaryOp: _unary,
    ast.BinOp: _arithmetic,
    ast.Constant: _constant,
    ast.IfExp: _choice,
    ast.Slice: _slice,
    ast.Call: _call,
}


def _is_text(node: ast.expr) -> bool:
    """Joined text or lists: with anything but + it is a TypeError, which every test finds."""
    return isinstance(node, ast.List | ast.ListComp | ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _with(node: N, **fields: object) -> N:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
