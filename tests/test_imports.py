"""Rooms in one order: a file imports only from those above it, at its top, and CONTRIBUTING's table is that order."""

import ast
import graphlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "natgrad"
LATE = {"scipy", "optax"}
"""What may be imported inside a function: each takes as long to import as the rest of natgrad."""


def name_of(path):
    """natgrad.solve.cg, or natgrad.solve for the room itself."""
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}


def targets(node):
    """The modules that an import statement names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert not node.level, "a relative import"
    inner = [f"{node.module}.{alias.name}" for alias in node.names]
    return [name if name in MODULES else node.module for name in inner]


def imports(code):
    return [
        name
        for node in ast.walk(code)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in targets(node)
    ]


def own(name):
    return [
        other for other in imports(MODULES[name]) if other.split(".")[0] == "natgrad" and other != "natgrad"
    ]


def room(name):
    """The first name below natgrad: a file, or a directory."""
    return name.split(".")[1]


def declared():
    """The rooms of the library in the order of CONTRIBUTING's table."""
    table = re.search(r"\| file \| concept \|\n(.*?)\n\n", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    cells = [line.split("|")[1] for line in table.group(1).splitlines()]
    names = [name for cell in cells for name in re.findall(r"`(?:src/natgrad/)?(\w+)(?:\.py|/)`", cell)]
    return [name for name in names if name not in ("natgrad_paper", "tests")]


def test_there_is_no_cycle():
    list(
        graphlib.TopologicalSorter({name: own(name) for name in MODULES if name != "natgrad"}).static_order()
    )


def test_a_file_imports_only_from_those_above_it():
    order = declared()
    rooms = {room(name) for name in MODULES if name != "natgrad"} - {"_version"}
    assert sorted(order) == sorted(rooms)
    for name in MODULES:
        if name in ("natgrad", "natgrad._version"):
            continue
        for other in own(name):
            assert room(other) == room(name) or order.index(room(other)) < order.index(room(name)), (
                f"{name} imports {other}, which is below it"
            )


def test_imports_are_at_the_top():
    """None inside a function, none for the type checker alone."""
    for name, code in MODULES.items():
        assert "TYPE_CHECKING" not in ast.dump(code), name
        top = {id(node) for node in code.body}
        for node in ast.walk(code):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and id(node) not in top:
                assert {other.split(".")[0] for other in targets(node)} <= LATE, f"{name}:{node.lineno}"
