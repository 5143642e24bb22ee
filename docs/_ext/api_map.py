"""The directive `api-map`: every public name with its signature and one line, from the docstrings."""

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from prose import _inline
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

API = Path(__file__).parents[1] / "api"
PAGES = ("recipes", "likelihoods", "metrics", "solvers", "directions", "searches", "tools", "optax")


def entries(page: str) -> Iterator[tuple[str, Any]]:
    """Yield the full names, and what they name, in the order of a page of the reference."""
    module = ""
    for kind, name in re.findall(
        r"^\.\. (currentmodule|auto\w+):: ([\w.]+)$", (API / f"{page}.rst").read_text(), re.MULTILINE
    ):
        if kind == "currentmodule":
            module = name
            continue
        full = name if name.startswith("natgrad.") else f"{module}.{name}"
        home, _, own = full.rpartition(".")
        yield full, getattr(importlib.import_module(home), own)


def short(full: str) -> str:
    """Return a name as a user types it."""
    return "ng." + full.removeprefix("natgrad.")


def signature(value: Any) -> str:
    """Return the arguments with their defaults, or an enum's members; nothing for what is not called."""
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        return " · ".join(member.name for member in value)
    if not callable(value):
        return ""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    plain = [
        each.replace(annotation=inspect.Parameter.empty, default=_default(each.default))
        for name, each in found.parameters.items()
        if name != "unknown"
    ]
    return str(inspect.Signature(plain)) if plain else "()"


class _Shown:
    """A default, as it is shown."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _default(value: Any) -> Any:
    if value is inspect.Parameter.empty:
        return value
    text = repr(value)
    return _Shown("…" if "<" in text else text)


def one_line(value: Any) -> str:
    """Return the first sentence of the docstring."""
    text = inspect.getdoc(value) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`θ])", first)[0]


class ApiMap(SphinxDirective):
    """`.. api-map::` has one table per page of the reference."""

    def run(self) -> list[nodes.Node]:
        """Return the tables."""
        lines: list[str] = []
        for page in PAGES:
            title = (API / f"{page}.rst").read_text().splitlines()[0]
            lines += [f".. rubric:: {title}", ""]
            lines += [".. list-table::", "   :class: api-map", "   :widths: 60 40", ""]
            for full, value in entries(page):
                called = signature(value).replace("\\", "\\\\").replace("`", "")
                shown = f" ``{called}``" if called else ""
                lines += [
                    f"   * - :py:obj:`{short(full)} <{full}>`{shown}",
                    f"     - {_inline(one_line(value))}",
                ]
            lines.append("")
        parent = nodes.Element()
        self.state.nested_parse(StringList(lines, "api-map"), self.content_offset, parent)
        return list(parent.children)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("api-map", ApiMap)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
