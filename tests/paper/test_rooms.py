"""The rooms of the reproduction import in one direction: errors ← data ← training ← report ← figures ← cli."""

import ast
from pathlib import Path

import pytest

import natgrad_paper

SOURCE = Path(natgrad_paper.__file__).parent
ROOMS = ("errors", "data", "training", "report", "figures", "cli")


@pytest.mark.parametrize(
    "path", sorted(SOURCE.glob("*/**/*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_a_room_imports_from_those_before_it(path):
    own = ROOMS.index(path.relative_to(SOURCE).parts[0])
    code = ast.parse(path.read_text())
    found = [node for node in ast.walk(code) if isinstance(node, ast.ImportFrom | ast.Import)]
    names = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in found]
    # `from natgrad_paper import figures` names a room beside the package.
    names += [
        f"natgrad_paper.{a.name}"
        for node in found
        if getattr(node, "module", "") == "natgrad_paper"
        for a in node.names
    ]
    rooms = [name.split(".")[1] for name in names if name and name.startswith("natgrad_paper.")]
    assert all(ROOMS.index(room) <= own for room in rooms), (path.name, rooms)
    assert "TYPE_CHECKING" not in ast.dump(code)
