"""The rooms of the reproduction: each imports only from those before it."""

import ast
from pathlib import Path

import natgrad_paper

ROOMS = ("errors", "data", "training", "report", "figures", "cli")
HOME = Path(natgrad_paper.__file__).parent


def room(name):
    """Return the room of a dotted name below the package; its own top is above all of them."""
    return name.split(".")[1] if name.count(".") else "cli"


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "natgrad_paper":
            yield from (f"natgrad_paper.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, path
            yield node.module


def test_a_room_imports_only_from_the_rooms_before_it():
    found = 0
    for path in HOME.rglob("*.py"):
        parts = path.relative_to(HOME).with_suffix("").parts
        if parts[0] in ("__init__", "__main__"):
            continue
        assert parts[0] in ROOMS, path
        assert "TYPE_CHECKING" not in path.read_text(encoding="utf-8"), path
        for name in imported(path):
            if name.startswith("natgrad_paper"):
                found += 1
                assert ROOMS.index(room(name)) <= ROOMS.index(parts[0]), f"{path} imports {name}"
    assert found > 200


SHARED = {
    "draw", "generate", "load", "prepare", "read", "refusal", "sections", "write", "Data", "Model", "Settings",
    "Adam", "Lbfgs", "Ngd", "Sgd", "kncg", "lbfgs", "ngd",
}  # fmt: skip
"""What a figure, a file, or a method has under the same name as others of its kind."""


def defined(path):
    """Yield the public names that a module defines, without constants, which are their module's own."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        names = [getattr(each, "name", getattr(each, "id", "_")) for each in targets]
        yield from (name for name in names if not name.startswith("_") and not name.isupper())


def test_a_name_means_one_thing():
    homes = {}
    for path in HOME.rglob("*.py"):
        for name in set(defined(path)):
            if path.parent.name != "cli" or name != path.stem:  # A subcommand has the name of its file.
                homes.setdefault(name, []).append(path.relative_to(HOME).as_posix())
    assert len(homes) > 400
    several = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert several.keys() == SHARED, several
