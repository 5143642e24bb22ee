"""The project's own files as pages of the site, with numbered lines, and links to them.

A page may say {source}`natgrad.likelihood.Bernoulli`: it shows the file and the line of today. A Markdown link to a
Python file of the repository leads to that file's page; so does "[source]" in the API.
"""

import html
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from sphinx import addnodes
from sphinx.application import Sphinx
from where import ROOT, locate

FOLDERS = ("src", "examples", "tests", "benchmarks")


def page_of(path: Path) -> str:
    """Return the name of a file's page, without extension."""
    return "files/" + path.with_suffix("").as_posix()


def source(role: str, raw: str, text: str, line: int, inliner: Any, *_: Any) -> tuple[list, list]:
    """Render {source}`dotted.name` as a link to its file and line."""
    try:
        path, number = locate(text)
    except LookupError as error:
        return [], [inliner.reporter.error(str(error), line=line)]
    here = inliner.document.settings.env.docname
    link = nodes.reference("", "", refuri=_relative(here, path, number), internal=True)
    shown = path.as_posix().removeprefix("src/").removeprefix("tests/")
    link += nodes.literal(text=shown if number == 1 else f"{shown}:{number}")
    return [link], []


def open_python_files(app: Sphinx, tree: nodes.document) -> None:
    """Turn what would be downloads of Python files into links to their pages."""
    for node in list(tree.findall(addnodes.download_reference)):
        path = (Path(app.env.doc2path(app.env.docname)).parent / node["reftarget"]).resolve()
        if path.suffix in (".py", ".ipynb") and path.is_relative_to(ROOT):
            link = nodes.reference("", "", refuri=_relative(app.env.docname, path.relative_to(ROOT)))
            link["internal"] = True
            link.extend(node.children)
            node.replace_self(link)


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for every Python file."""
    formatter = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True, cssclass="highlight")
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        shown = path.relative_to(ROOT)
        body = highlight(path.read_text(), PythonLexer(), formatter)
        yield page_of(shown), {"title": shown.as_posix(), "body": f"<h1>{shown}</h1>{body}"}, "page.html"
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        shown = path.relative_to(ROOT)
        yield page_of(shown), {"title": path.stem, "body": "".join(notebook(path))}, "page.html"


def notebook(path: Path) -> Iterator[str]:
    """Yield the cells of a notebook and their outputs as HTML."""
    plain = HtmlFormatter(cssclass="highlight")
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield MarkdownIt("commonmark").render(text)
            continue
        yield highlight(text, PythonLexer(), plain)
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                yield f"<pre>{html.escape(''.join(output['text']))}</pre>"
            else:
                yield f'<img alt="what the cell draws" src="data:image/png;base64,{output["data"]["image/png"]}">'


def resolve(domain: str, info: dict[str, str]) -> str | None:
    """Return the link of an API entry's "[source]": the API's pages are one folder down."""
    import importlib

    here: Any = importlib.import_module(info["module"])
    for part in info["fullname"].split("."):
        here = getattr(here, part, None)
    module, name = getattr(here, "__module__", None), getattr(here, "__qualname__", None)
    if not module or not name:
        return None
    path, number = locate(f"{module}.{name}")
    return _relative("api/index", path, number)


def _relative(docname: str, path: Path, line: int | None = None) -> str:
    up = os.path.relpath(page_of(path) + ".html", start=Path(docname).parent)
    return up if line is None else f"{up}#L-{line}"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_role("source", source)
    app.connect("doctree-read", open_python_files)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
