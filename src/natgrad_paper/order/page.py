"""The report of figure 2: one HTML page that needs nothing else, the figure's files and a CSV, from the logs alone."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from natgrad_paper import claims, drawing, experiments, report, sections, settings, table
from natgrad_paper.claims import Judged
from natgrad_paper.document import document
from natgrad_paper.log import FINISHED, RunLog
from natgrad_paper.markup import Markup, join, tag
from natgrad_paper.order import figures, numbers, tables
from natgrad_paper.order.claims import CLAIMS, RULE
from natgrad_paper.page import PAGE, TABLE, VERDICTS
from natgrad_paper.results import claims_as_csv
from natgrad_paper.series import Runs, by_method

SHOWN = 4
"""Columns of the table of results that fit a screen."""
TITLE = "Figure 2: the order of the training examples"


def show(logs: list[RunLog], directory: Path, console: Console) -> None:
    """Write the page, the figure and the table into the directory, and show the results in short."""
    report.check(logs)
    runs = by_method(logs)
    judged = claims.judge(CLAIMS, runs)
    files = {PAGE: html(logs, runs, judged), TABLE: numbers.as_csv(runs), VERDICTS: claims_as_csv(judged)}
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8", newline="\n")
    drawn = figures.write(runs, directory)
    console.print(summary(runs))
    console.print(table.verdicts(judged))
    paths = (directory / PAGE, *drawn, directory / TABLE, directory / "logs")
    for name, path in zip(("Report:", "Figure:", "       ", "Table: ", "Logs:  "), paths, strict=True):
        console.print(f"{name} {path}", highlight=False, soft_wrap=True, markup=False)


def summary(runs: Sequence[Runs]) -> Table:
    """Return the results for the screen."""
    shown = Table(title="Means over seeds", title_justify="left", box=box.SIMPLE_HEAD)
    for name in tables.RESULTS[:SHOWN]:
        shown.add_column(name, justify="left" if name == "method" else "right")
    for label, cells in tables.result_rows(runs):
        shown.add_row(Text(label), *(Text(" ".join(cell).strip()) for cell in cells[: SHOWN - 1]))
    return shown


def html(logs: list[RunLog], runs: Sequence[Runs], judged: Sequence[Judged]) -> str:
    """Return the page."""
    content = join(
        _head(logs, judged),
        _figure(runs),
        tables.results(runs),
        tables.matching(runs),
        sections.claims(
            judged,
            RULE,
            f"Ratios: geometric mean over seeds, and in brackets {claims.INTERVAL}.",
        ),
        _part(
            "Smaller rates",
            "limit",
            figures.limit(runs),
            "Variance of the outputs with one segment replaced, against the rate; a line for each method and seed. "
            "Where the outputs depend on the examples linearly, it falls with the square of the rate.",
        ),
        _part(
            "A drifting mix of classes",
            "drift",
            figures.drift(runs),
            "Validation error on the equal mix, mean over seeds, along the unperturbed stream (solid) and along "
            "streams on which the classes come one after another, from 0 to z (dashed) and from z to 0 (dotted), at "
            "the same rates.",
        ),
        _characters(logs),
        tables.time(runs),
        tables.troubles(logs),
        sections.settings(settings.rows(logs)),
        sections.command(settings.command(logs, experiments.load("order"))),
    )
    return document(f"{TITLE}: {logs[0].header['data']['name']}", content)


def _head(logs: list[RunLog], judged: Sequence[Judged]) -> Markup:
    head = logs[0].header
    data, stream = head["data"], head["config"]["stream"]
    verdicts = [each.verdict for each in judged]
    updates = 2 * stream["segments"] * stream["segment"]
    seeds = sorted({log.header["seed"] for log in logs})
    facts = {
        "Data": f"{data['name']}, {data['glyphs'][0]} glyphs of 62 classes, deformed on the fly, {stream['side']}×"
        f"{stream['side']} pixels, sha256 {data['sha256']}",
        "Trainings": f"{updates} updates on batches of {stream['batch']}; the first half of the stream in "
        f"{stream['segments']} segments, each replaced {head['config']['repeats']} times by fresh examples; all from "
        "the seed’s own initial weights",
        "Preset": ", ".join(sorted({str(log.header["preset"]) for log in logs})),
        "Seeds": ", ".join(map(str, seeds))
        + ("" if all(log.end == FINISHED for log in logs) else " (not all finished)"),
        "Hardware": "; ".join(report.machines(logs)),
        "Versions": report.versions(logs),
    }
    return tag(
        "header",
        tag("h1", TITLE),
        tag("p", claims.lede(verdicts), class_="lede"),
        tag("dl", [join(tag("dt", name), tag("dd", words)) for name, words in facts.items()], class_="facts"),
    )


def _figure(runs: Sequence[Runs]) -> Markup:
    drawn = [
        Markup(drawing.inline(figure, f"f{k}", f"{words}; the numbers are in results.csv"))
        for k, (figure, words) in enumerate(figures.panels(runs))
    ]
    several = max(len(group.logs) for group in runs) > 1
    caption = (
        "Left: how much the outputs on held-out examples vary over trainings that differ in the examples of one "
        "segment. Right: the same, divided by its own mean over the segments. "
        + (
            "Lines: geometric mean over seeds; bands: least to largest."
            if several
            else "One seed: no spread to show."
        )
    )
    return tag(
        "section",
        tag("h2", "Variance against the segment that was replaced"),
        tag(
            "figure",
            tag("div", drawn, class_="panels"),
            sections.legend(drawing.grouped(runs, ())[0]),
            tag("figcaption", caption),
            id="figure",
        ),
    )


def _part(title: str, name: str, figure: Figure | None, caption: str) -> Markup:
    """Return a section with one figure, or a sentence where there is none."""
    if figure is None:
        return tag("section", tag("h2", title), tag("p", "The logs hold no such trainings."))
    return tag(
        "section",
        tag("h2", title),
        tag(
            "figure",
            tag("div", Markup(drawing.inline(figure, name, caption)), class_="panels"),
            tag("figcaption", caption),
            id=name,
        ),
    )


def _characters(logs: list[RunLog]) -> Markup:
    figure = next((found for log in logs if (found := figures.characters(log)) is not None), None)
    words = "The first characters of a stream: as they come, and after each deformation."
    picture = tag("p", "The logs hold no samples.")
    if figure is not None:
        picture = tag(
            "figure", tag("img", src=figures.address(figure), alt=words, style="max-width:100%"),
            tag("figcaption", words), id="characters",
        )  # fmt: skip
    return tag("section", tag("h2", "The data"), picture)
