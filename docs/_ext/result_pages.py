"""The results as pages of the site: each README of `results/`, and the report that follows from its logs."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from markdown_it import MarkdownIt
from sphinx import addnodes
from sphinx.application import Sphinx
from where import ROOT

RESULTS = ROOT / "results"
LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")
UNREAD = ("race",)
"""Of these there are no logs that are read today."""


def open_results(app: Sphinx, tree: nodes.document) -> None:
    """Turn links to a README of the results into links to its page."""
    here = Path(app.env.doc2path(app.env.docname)).parent
    for node in list(tree.findall(addnodes.pending_xref)):
        path = Path(os.path.normpath(here / f"{node.get('reftarget', '')}.md"))
        if path.name == "README.md" and path.is_relative_to(RESULTS):
            page = os.path.relpath(page_of(path.parent), start=Path(app.env.docname).parent)
            link = nodes.reference("", "", refuri=f"{page}.html", internal=True)
            link.extend(node.children)
            node.replace_self(link)


def page_of(folder: Path) -> str:
    """Return the name of the page of a folder of the results."""
    return "runs/index" if folder == RESULTS else f"runs/{folder.name}"


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for every README of the results."""
    for path in sorted(RESULTS.rglob("README.md")):
        folder = path.parent
        text = LINK.sub(lambda match, folder=folder: f"]({_target(folder, match[1])})", path.read_text())
        if folder != RESULTS and folder.name not in UNREAD:
            text += f"\n[The whole report](report-{folder.name}.html), made from the logs.\n"
        body = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
        yield page_of(folder), {"title": text.splitlines()[0].lstrip("# "), "body": body}, "page.html"


def _target(folder: Path, target: str) -> str:
    """Return where a link of a README leads on the site, seen from the folder of these pages."""
    path = Path(os.path.normpath(folder / target))
    if path.is_relative_to(RESULTS) and path.is_dir():
        return f"{page_of(path).removeprefix('runs/')}.html"
    if path.is_relative_to(ROOT / "docs"):
        return f"../{path.relative_to(ROOT / 'docs').with_suffix('.html').as_posix()}"
    return f"{path.parent.name}-{path.name}"


def write(app: Sphinx, problem: Exception | None) -> None:
    """Put pictures and tables beside the pages, and make the reports."""
    if problem is not None or app.builder.name != "html":
        return
    from natgrad_paper import figures
    from natgrad_paper.report import load, page

    target = Path(app.outdir) / "runs"
    for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir()):
        for path in folder.iterdir():
            if path.suffix in (".png", ".csv", ".txt", ".json"):
                shutil.copyfile(path, target / f"{folder.name}-{path.name}")
        if folder.name not in UNREAD:
            runs = load.read(folder)
            with tempfile.TemporaryDirectory() as place:
                page.write(runs, figures.load(runs.experiment).story, Path(place))
                shutil.copyfile(Path(place) / "report.html", target / f"report-{folder.name}.html")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("doctree-read", open_results)
    app.connect("html-collect-pages", pages)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
