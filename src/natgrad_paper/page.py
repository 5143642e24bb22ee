"""The report: one HTML page that needs nothing else, the figure's files and a CSV, all from the logs alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from natgrad_paper import (
    claims,
    diagnostics,
    drawing,
    experiments,
    report,
    results,
    samples,
    sections,
    settings,
)
from natgrad_paper.claims import Judged
from natgrad_paper.diagnostics import QUANTITIES, Quantity
from natgrad_paper.document import document
from natgrad_paper.drawing import Group
from natgrad_paper.experiment import Experiment
from natgrad_paper.log import RunLog
from natgrad_paper.markup import Markup, join, tag
from natgrad_paper.measures import AXES, RECONSTRUCTION, View
from natgrad_paper.series import Runs, by_method

PAGE, TABLE, VERDICTS = "report.html", "results.csv", "claims.csv"


@dataclass(frozen=True)
class Report:
    """What the page is made of: the logs, and what follows from them."""

    logs: list[RunLog]
    runs: list[Runs]
    groups: list[Group]
    judged: list[Judged]
    experiment: Experiment | None
    view: View

    @property
    def titled(self) -> report.Titled:
        """The groups of methods as the experiment names them."""
        return self.experiment.groups if self.experiment else ()


def gather(logs: list[RunLog]) -> Report:
    """Return everything the report says, not yet written down."""
    report.check(logs)
    name = logs[0].header["experiment"]
    experiment = experiments.load(name) if name in experiments.names() else None
    runs = by_method(logs)
    return Report(
        logs,
        runs,
        drawing.grouped(runs, experiment.groups if experiment else ()),
        claims.judge(experiment.claims if experiment else (), runs),
        experiment,
        experiment.view if experiment else RECONSTRUCTION,
    )


def write(found: Report, directory: Path) -> list[Path]:
    """Write the page, the figure and the table into the directory; return their paths."""
    files = {PAGE: html(found), TABLE: results.as_csv(found.runs, found.view)}
    if found.judged:
        files[VERDICTS] = results.claims_as_csv(found.judged)
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8", newline="\n")
    figures = report.write_figure(found.logs, directory, found.titled, found.view)
    return [directory / PAGE, *figures, directory / TABLE]


def html(found: Report) -> str:
    """Return the page."""
    title = found.experiment.title if found.experiment else found.logs[0].header["experiment"]
    sights, strips = samples.sights(found.logs), samples.strips(found.runs)
    content = join(
        _head(found, title),
        _figure(found),
        sections.results(found.groups, found.runs, found.view),
        sections.claims(found.judged, claims.rule(found.view)),
        _diagnostics(found),
        sections.sights(sights),
        sections.samples(strips) if strips or not sights else None,
        sections.time(found.runs),
        sections.troubles(
            results.troubles([log for group in found.runs for log in group.logs]), len(found.logs)
        ),
        sections.settings(settings.rows(found.logs)),
        sections.command(settings.command(found.logs, found.experiment)),
    )
    return document(f"{title}: {found.logs[0].header['data']['name']}", content)


def _head(found: Report, title: str) -> Markup:
    header = found.logs[0].header
    data = header["data"]
    presets = ", ".join(sorted({str(log.header["preset"]) for log in found.logs}))
    seeds = sorted({log.header["seed"] for log in found.logs})
    verdicts = [judged.verdict for judged in found.judged]
    facts = {
        "Data": f"{data['name']}, {_cases(data)}, sha256 {data['sha256']}",
        "Preset": presets,
        "Runs": f"{len(found.logs)}: {len(found.runs)} methods, seeds {', '.join(map(str, seeds))}",
        "Hardware": "; ".join(report.machines(found.logs)),
        "Versions": report.versions(found.logs),
    }
    return tag(
        "header",
        tag("h1", title),
        tag("p", claims.lede(verdicts), class_="lede") if verdicts else None,
        tag("dl", [join(tag("dt", name), tag("dd", words)) for name, words in facts.items()], class_="facts"),
    )


def _cases(data: dict[str, Any]) -> str:
    """Return how many cases of each kind the data has."""
    kinds = (("train", "training"), ("valid", "validation"), ("test", "test"), ("unlabelled", "unlabelled"))
    counts = [f"{data[part][0]} {name}" for part, name in kinds if part in data]
    return f"{', '.join(counts[:-1])} and {counts[-1]} cases"


def _figure(found: Report) -> Markup:
    drawn, described = [], []
    for k, (panel, figure) in enumerate(report.panels(found.logs, found.titled, found.view)):
        against = f"{' '.join(panel.measure.title.split())} against {AXES[panel.axis]}"
        scales = "both logarithmic" if panel.measure.scale.name == "log" else "that axis logarithmic"
        words = f"{against}, {scales}, one line per method; the numbers are in the table of results and in results.csv"
        drawn.append(Markup(drawing.inline(figure, f"f{k}", words)))
        described.append(against[0].upper() + against[1:])
    several = len({log.header["seed"] for log in found.logs}) > 1
    caption = (
        f"{'; '.join(described)}. "
        + (
            "Training time excludes compiling and evaluating. "
            if "training_seconds" in found.view.axes
            else ""
        )
        + (
            "Lines: mean over seeds, on the axis as drawn; bands: least to largest. Runs cut short are left out where "
            "a method has others."
            if several
            else "One seed: no spread to show."
        )
    )
    return tag(
        "section",
        tag("h2", found.view.title),
        tag(
            "figure",
            tag("div", drawn, class_="panels"),
            [sections.legend(group) for group in found.groups],
            tag("figcaption", caption),
            id="figure",
        ),
    )


def _diagnostics(found: Report) -> Markup:
    limits = diagnostics.limits(found.groups)
    parts: list[Markup] = []
    used: set[Quantity] = set()
    for g, group in enumerate(map(diagnostics.with_steps, found.groups)):
        figures = {
            q: figure for q in QUANTITIES if (figure := diagnostics.draw(group, q, limits)) is not None
        }
        used |= figures.keys()
        drawn = [
            Markup(
                drawing.inline(
                    figure, f"d{g}{QUANTITIES.index(q)}", f"{q.title} against iterations: {group.title}"
                )
            )
            for q, figure in figures.items()
        ]
        if drawn:
            parts.append(
                join(
                    tag("h3", group.title),
                    sections.legend(group, title=False),
                    tag("div", drawn, class_="multiples"),
                )
            )
    words = [join(tag("dt", q.title), tag("dd", q.about)) for q in QUANTITIES if q in used]
    whole = all(log.steps for log in found.logs)
    source = (
        "steps kept in the logs"
        if whole
        else "steps kept in the logs, or else the last before each evaluation"
    )
    return tag(
        "section",
        tag("h2", "How the steps went"),
        join(tag("dl", words, class_="rule"), tag("p", f"Medians over seeds of the {source}.", class_="note"))
        if parts
        else tag("p", "The logs hold no single steps."),
        tag("figure", parts, id="diagnostics") if parts else None,
    )
