"""Where a name is defined: found in the source by parsing it, so that no page carries a line number."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def locate(name: str) -> tuple[Path, int]:
    """Return the file (from the repository's root) and the line where a dotted name is defined.

    `natgrad.metric.metrics.Fisher`, `natgrad_paper.models.autoencoder`, `tests.test_metric.test_x`, or a module alone.
    """
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        path = _module(parts[:cut])
        if path is not None:
            return path.relative_to(ROOT), _line(path, tuple(parts[cut:]), name)
    raise LookupError(f"{name}: no such module.")


def _module(parts: list[str]) -> Path | None:
    for root in (ROOT / "src", ROOT):
        base = root.joinpath(*parts)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
    return None


def _line(path: Path, inside: tuple[str, ...], name: str) -> int:
    body, line = _parse(path).body, 1
    for part in inside:
        node = next((node for node in body if part in _names(node)), None)
        if node is None:
            raise LookupError(f"{name}: {path.name} defines no {'.'.join(inside)}.")
        body, line = getattr(node, "body", []), node.lineno
    return line


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _names(node: ast.stmt) -> set[str]:
    """Return what a statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}
