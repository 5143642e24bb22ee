"""Small errors, one at a time: a sign, an index or a constant that is not what it was.

Left out, by kind, are places where another value is no error or none that a program can show:

- texts, annotations, decorators, and what only decides whether to raise;
- defaults of fields and arguments, and constants of a class or module: another value is another choice;
- what is computed with the machine's precision (eps, tiny, a tolerance): another factor is another tolerance;
- what is asked for its shape and type alone, as in `zeros_like(x[0])`, or `x = y[:1]` if `eval_shape(f, x)` is all
  that becomes of x;
- what guards a divisor that is not used, as in `x / where(fine, y, 1)` and `where(y == 0, 1, y)`, and the seed of a
  random key;
- what stands in for a value that is not used, as the 0 in `where(fine, f(where(fine, x, 0)), y)`, and in
  `where(finite, x, 0)`, where all that follows from numbers that are not finite is replaced by NaN;
- the sign before a `poison`, which is 0 or NaN.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE
}  # fmt: skip
AXES = {"axis", "axes", "in_axes", "out_axes"}
TOLERANCE = re.compile(r"eps|tiny|finfo|tol|margin")
POISON = "poison"


class Place(NamedTuple):
    """Where an error can be made, and how."""

    kind: str
    node: ast.AST
    make: Callable[[], None]


@dataclass(frozen=True)
class Mutant:
    """A source file with one error in it."""

    path: Path
    kind: str
    line: int
    before: str
    after: str
    source: str

    def __str__(self):
        return f"{self.path.name}:{self.line} {self.kind}: {self.before} → {self.after}"


def count(path: Path) -> int:
    """Return how many errors can be made in a file."""
    return sum(1 for _ in _places(ast.parse(path.read_text())))


def mutant(path: Path, number: int) -> Mutant:
    """Return a file with one of its errors made."""
    tree = ast.parse(path.read_text())
    place = list(_places(tree))[number]
    statement = _statement(tree, place.node)
    before = _first(statement)
    place.make()
    return Mutant(
        path, place.kind, statement.lineno, *_difference(before, _first(statement)), ast.unparse(tree)
    )


def _places(node: ast.AST, index: bool = False) -> Iterator[Place]:
    """Return the places below a node; `index` is whether its numbers count positions."""
    if isinstance(node, ast.Constant):
        yield from _number(node, index)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        if not index:
            yield Place("sign", node, lambda: _positive(node))
        yield from _places(node.operand, index)
    elif isinstance(node, ast.BinOp | ast.Compare):
        yield from _sign(node)
        guard = _guard(node)
        yield from (place for place in _below(node, index) if place.node not in guard)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("_like"):
        for below in node.args[1:]:
            yield from _places(below)
    elif _calls(node, "where"):
        unused = _unused(node)
        yield from (place for place in _below(node, index) if place.node not in unused)
    elif isinstance(node, ast.Subscript):
        yield from _places(node.value)
        yield from _places(node.slice, True)
    elif isinstance(node, ast.keyword):
        yield from _places(node.value, node.arg in AXES)
    elif isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise):
        for below in node.orelse:
            yield from _places(below)
    elif isinstance(node, ast.FunctionDef):
        if node.name != "__post_init__":
            unused = _of_shapes(node)
            for below in node.body:
                yield from (place for place in _places(below) if place.node not in unused)
    elif isinstance(node, ast.Lambda):
        yield from _places(node.body)
    elif isinstance(node, ast.ClassDef | ast.Module):
        for below in node.body:
            if not isinstance(below, ast.Assign | ast.AnnAssign):
                yield from _places(below)
    elif isinstance(node, ast.AnnAssign):
        if node.value is not None:
            yield from _places(node.value)
    elif not (isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr) or _calls(node, "key")):
        yield from _below(node, index)


def _below(node: ast.AST, index: bool) -> Iterator[Place]:
    precise = isinstance(node, ast.stmt) and TOLERANCE.search(ast.unparse(node)) and not _compound(node)
    for below in ast.iter_child_nodes(node):
        yield from (place for place in _places(below, index) if not (precise and place.kind == "constant"))


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name


def _guard(node: ast.BinOp | ast.Compare) -> list[ast.AST]:
    """Return all that stands in a `where` that is divided by; of one with new axes, what takes a divisor's place."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
        return []
    if isinstance(node.right, ast.Subscript) and _calls(node.right.value, "where"):
        return list(ast.walk(node.right.value.args[2]))
    return list(ast.walk(node.right)) if _calls(node.right, "where") else []


def _unused(choice: ast.Call) -> list[ast.AST]:
    """Return the constants in a `where` that stand in for values that are not used."""
    condition, chosen, other = choice.args
    inside = [node for node in ast.walk(chosen) if _calls(node, "where")]
    found = [node.args[2] for node in inside if ast.dump(node.args[0]) == ast.dump(condition)]
    if ast.unparse(condition) == "finite":
        found.append(other)
    if ast.unparse(condition) == f"{ast.unparse(other)} == 0":
        found.append(chosen)
    return [node for node in found if isinstance(node, ast.Constant) and type(node.value) is int]


def _of_shapes(function: ast.FunctionDef) -> list[ast.AST]:
    """Return the assignments to names that only `eval_shape` reads, with all below them."""
    shapes = [node for node in ast.walk(function) if _calls(node, "eval_shape")]
    read = [
        node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    ]
    asked = [node for call in shapes for node in call.args if isinstance(node, ast.Name)]
    names = {node.id for node in asked} - {node.id for node in read if node not in asked}
    return [
        below
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in names
        for below in ast.walk(node)
    ]


def _compound(node: ast.stmt) -> bool:
    return any(isinstance(below, ast.stmt) for below in ast.iter_child_nodes(node))


def _number(node: ast.Constant, index: bool) -> Iterator[Place]:
    if type(node.value) not in (int, float):
        return
    wrong = node.value + 1 if isinstance(node.value, int) else 2 * node.value or 1.0
    yield Place("index" if index else "constant", node, lambda: setattr(node, "value", wrong))


def _sign(node: ast.BinOp | ast.Compare) -> Iterator[Place]:
    operands = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.left, *node.comparators)
    if any(TOLERANCE.search(ast.unparse(operand)) or ast.unparse(operand) == POISON for operand in operands):
        return
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        yield Place("sign", node, lambda: setattr(node, "op", SWAPS[type(node.op)]()))
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield Place("sign", node, lambda: node.ops.__setitem__(0, SWAPS[type(node.ops[0])]()))


def _positive(node: ast.UnaryOp) -> None:
    node.op = ast.UAdd()


def _statement(tree: ast.AST, wanted: ast.AST) -> ast.stmt:
    """Return the innermost statement around a node."""
    around = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and wanted in ast.walk(node)]
    return around[-1]


def _first(statement: ast.stmt) -> str:
    """Return a statement in one line; of a block, what stands before the colon."""
    return ast.unparse(statement).split("\n")[0] if _compound(statement) else ast.unparse(statement)


def _difference(before: str, after: str, around: int = 12) -> tuple[str, str]:
    """Return the two texts where they differ, with a little of what is around."""
    start = next((k for k, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    begin = max(0, start - around)
    return before[begin : start + around], after[begin : start + around]
