"""The report: one self-contained HTML page, the figure's files and CSV tables, all from the logs alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from natgrad_paper.report import claims, diagnostics, health, images, provenance, tables
from natgrad_paper.report.claims import Judged, Verdict
from natgrad_paper.report.figure import draw, grouped, png, svg
from natgrad_paper.report.load import Runs
from natgrad_paper.report.parts import Picture
from natgrad_paper.report.story import Story
from natgrad_paper.report.views import AXES
from natgrad_paper.training.settings import CHOOSING

HERE = Path(__file__).parent
STYLES = ("holds", "fails", "open", "open", "open", "open")
MARKS = dict(zip(Verdict, zip(STYLES, "✓✗?=∅–", strict=True), strict=True))
"""The style of each verdict on the page, and its sign, because some readers cannot see the color."""
Presets = Mapping[str, Mapping[str, Any]]
NONE: Presets = MappingProxyType({})


def write(runs: Runs, story: Story, directory: Path, presets: Presets = NONE) -> list[Path]:
    """Write the page, the figure and the tables into the directory; return their paths, the page first.

    `presets` holds the settings of each of the experiment's presets, for the command on the page.
    """
    judged = claims.judge(story.claims, runs)
    published = story.published(runs)
    figure = story.figure(runs) if story.figure else draw(runs, story.view, story.groups, published)
    drawn, command = svg(figure), provenance.command(runs, presets)
    files: dict[str, str | bytes] = {"report.html": html(runs, story, judged, drawn, command)}
    files |= {f"{runs.experiment}.svg": drawn, f"{runs.experiment}.png": png(figure)}
    files |= {"results.csv": tables.as_csv(runs.evaluations)}
    files |= {"measures.csv": tables.as_csv(runs.measures)} if len(runs.measures) else {}
    files |= {"claims.csv": tables.claims_csv(judged)} if judged else {}
    for file, content in files.items():
        (directory / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    return [directory / file for file in files]


def html(runs: Runs, story: Story, judged: Sequence[Judged], drawn: bytes, command: str) -> str:
    """Return the page, with the figure that was drawn. The template computes the rest from the runs."""
    groups = grouped(runs.methods, story.groups)
    shown = groups if story.diagnostics else []
    steps = [(group.title, *found) for group in shown if (found := diagnostics.draw(runs, group))]
    options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    pages = Environment(loader=FileSystemLoader(HERE), undefined=StrictUndefined, **options)
    return pages.get_template("page.html.j2").render(
        css=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        runs=runs,
        story=story,
        judged=judged,
        groups=groups,
        drawn=drawn,
        command=command,
        diagnostics=[
            (title, Picture(figure, alt=f"how the steps went: {title}")) for title, figure, _ in steps
        ],
        quantities=[each for each in diagnostics.QUANTITIES if any(each in used for *_, used in steps)],
        constants={"choosing": CHOOSING, "axes": AXES, "marks": MARKS},
        modules={
            each.__name__.rpartition(".")[2]: each for each in (claims, health, images, provenance, tables)
        },
        picture=Picture,
    )
