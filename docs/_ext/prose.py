"""From the plain voice of the docstrings to what Sphinx reads; and links from `ng.Name` to the API, everywhere.

Docstrings here are plain text with `code` in single backticks and formulas in indented lines.
"""

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

import natgrad
import natgrad.optax

CODE = re.compile(r"`([^`]+)`")
OWN = (nodes.title, nodes.reference, addnodes.desc, addnodes.pending_xref)
"""What names inside are left alone."""
NAME = re.compile(r"(?:\w+=)?(?:\+ )?(ng\.)?(optax\.)?(\w+)(?:\(.*\))?", re.DOTALL)


def target_of(code: str) -> str | None:
    """Return the full name that a piece of code speaks of, if it is a public one."""
    match = NAME.fullmatch(code)
    if match is None:
        return None
    ours, inner, name = match.groups()
    if ours and inner:
        return f"natgrad.optax.{name}" if hasattr(natgrad.optax, name) else None
    public = name in vars(natgrad) and not name.startswith("_")
    return f"natgrad.{name}" if public and (ours or name[0].isupper()) else None


def translate(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite a docstring in place: formulas become literal blocks, code links or literals, `Args:` a list."""
    out: list[str] = []
    for line in lines:
        formula = line.startswith("    ") and not _inside_section(out)
        if formula and out and not out[-1].strip():
            out[-1:] = ["", "::", ""]
        out.append(line if formula else _inline(line))
    # Of a field, napoleon would take what precedes a colon for its type.
    whole = what in ("attribute", "property", "data")
    lines[:] = out if whole else GoogleDocstring(out, Config(), app, what, name, obj, options).lines()


def _inside_section(before: list[str]) -> bool:
    """Tell whether the last line that is not indented opens a list of arguments, or a list of points."""
    flush = [line for line in before if line.strip() and not line.startswith(" ")]
    return bool(flush) and (flush[-1].endswith(":") and flush[-1] in ("Args:", "Returns:"))


def _inline(line: str) -> str:
    pieces = CODE.split(line)
    for i, piece in enumerate(pieces):
        if i % 2 == 0:
            pieces[i] = re.sub(r"(?<!^)(?<!^ )([*|])|(?<=\w)(_)(?=\W|$)", r"\\\1\2", piece)
        else:
            target = target_of(piece)
            pieces[i] = f":py:obj:`{piece} <{target}>`" if target else f"``{piece}``"
    return "".join(pieces)


def link_names(app: Sphinx, tree: nodes.document) -> None:
    """Turn `ng.Name` in running text and tables into a link to the API."""
    for literal in list(tree.findall(nodes.literal)):
        target = target_of(literal.astext()) if "ng." in literal.astext() else None
        within: Any = literal.parent
        while within is not None and not isinstance(within, OWN):
            within = within.parent
        if target is None or within is not None:
            continue
        link = addnodes.pending_xref(
            "", refdomain="py", reftype="obj", reftarget=target, refexplicit=True, refdoc=app.env.docname
        )
        literal.replace_self(link)
        link += literal


def shorten_contents(app: Sphinx, tree: nodes.document) -> None:
    """Leave fields and methods out of a page's contents: the classes are enough."""
    for entry in tree.findall(addnodes.desc):
        if entry["objtype"] in ("attribute", "property", "method"):
            for signature in entry.findall(addnodes.desc_signature):
                signature["_toc_name"] = ""


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("autodoc-process-docstring", translate)
    app.connect("doctree-read", link_names)
    app.connect("doctree-read", shorten_contents, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
