"""HTML out of Python, with everything escaped that is not HTML already."""

from html import escape
from typing import Any


class Markup(str):
    """Text that is HTML already."""


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """Return an element. An attribute that is None is left out, True stands alone, `class_` is class."""
    inside = join(*children)
    words = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{words}>" if name in ("img", "meta") else f"<{name}{words}>{inside}</{name}>")


def join(*children: Any) -> Markup:
    """Return the children one after another; a list is joined, None is nothing."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, list | tuple):
            parts.append(join(*child))
        elif child is not None:
            parts.append(child if isinstance(child, Markup) else escape(str(child)))
    return Markup("".join(parts))


def table(head: list[Any], rows: list[list[Any]], caption: str = "", **attributes: Any) -> Markup:
    """Return a table. The first cell of every row is its header; cells carry their column's name for narrow pages."""
    names = [_text(cell) for cell in head]
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(tag("td", cell, data_column=name) for name, cell in zip(names[1:], row[1:], strict=True)),
        )
        for row in rows
    ]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", tag("span", caption)) if caption else None,
            tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head))),
            tag("tbody", *(join("\n", row) for row in body)),
            **attributes,
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption or "table",
    )


def _text(cell: Any) -> str:
    return "" if isinstance(cell, Markup) else str(cell)
