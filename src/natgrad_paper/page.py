"""The report: one HTML page that needs nothing else, the figure's files and a CSV, all from the logs alone."""

from dataclasses import dataclass
from pathlib import Path

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
from natgrad_paper.claims import Judged, Verdict
from natgrad_paper.document import document
from natgrad_paper.drawing import Group
from natgrad_paper.experiment import Experiment
from natgrad_paper.log import RunLog
from natgrad_paper.markup import Markup, join, tag
from natgrad_paper.series import AXES, Runs, by_method

PAGE, TABLE = "report.html", "results.csv"


@dataclass(frozen=True)
class Report:
    """What the page is made of: the logs, and what follows from them."""

    logs: list[RunLog]
    runs: list[Runs]
    groups: list[Group]
    judged: list[Judged]
    experiment: Experiment | None


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
    )


def write(found: Report, directory: Path) -> list[Path]:
    """Write the page, the figure and the table into the directory; return their paths."""
    files = {PAGE: html(found), TABLE: results.as_csv(found.runs)}
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8", newline="\n")
    figures = report.write_figure(found.logs, directory, found.experiment.groups if found.experiment else ())
    return [directory / PAGE, *figures, directory / TABLE]


def html(found: Report) -> str:
    """Return the page."""
    title = found.experiment.title if found.experiment else found.logs[0].header["experiment"]
    content = join(
        _head(found, title),
        _figure(found),
        sections.results(found.groups, found.runs),
        sections.claims(found.judged),
        _diagnostics(found),
        sections.samples(samples.strips(found.runs)),
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
    hold, fail, open_ = (verdicts.count(each) for each in (Verdict.HOLDS, Verdict.FAILS, Verdict.OPEN))
    lede = (
        f"On this evidence {hold} of {len(verdicts)} claims hold{'s' * (hold == 1)}, {fail} do{'es' * (fail == 1)} "
        f"not, and {open_} {'is' if open_ == 1 else 'are'} not decided."
    )
    facts = {
        "Data": f"{data['name']}, {data['train'][0]} training and {data['test'][0]} test cases, "
        f"sha256 {data['sha256']}",
        "Preset": presets,
        "Runs": f"{len(found.logs)}: {len(found.runs)} methods, seeds {', '.join(map(str, seeds))}",
        "Hardware": "; ".join(report.machines(found.logs)),
        "Versions": "; ".join(report.versions(found.logs)),
    }
    return tag(
        "header",
        tag("h1", title),
        tag("p", lede, class_="lede") if verdicts else None,
        tag("dl", [join(tag("dt", name), tag("dd", words)) for name, words in facts.items()], class_="facts"),
    )


def _figure(found: Report) -> Markup:
    described = {
        axis: f"{report.ERROR_TITLE} against {report.AXIS_TITLES[axis]}, both logarithmic, one line a method; "
        "the numbers are in the table of results and in results.csv"
        for axis in AXES
    }
    figures = report.panels(found.logs, found.experiment.groups if found.experiment else ())
    drawn = [
        Markup(drawing.inline(figure, f"f{k}", described[axis]))
        for k, (axis, figure) in enumerate(figures.items())
    ]
    several = len({log.header["seed"] for log in found.logs}) > 1
    caption = (
        "Training error on the whole set against iterations (left) and training time (right), which excludes compiling "
        "and evaluating. "
        + (
            "Lines: geometric mean over seeds; bands: least to largest. Runs cut short are left out where a method "
            "has others."
            if several
            else "One seed: no spread to show."
        )
    )
    return tag(
        "section",
        tag("h2", "Error against iterations and against time"),
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
    parts = []
    for g, group in enumerate(map(diagnostics.with_steps, found.groups)):
        drawn = [
            Markup(drawing.inline(figure, f"d{g}{q}", f"{quantity.title} against iterations: {group.title}"))
            for q, quantity in enumerate(diagnostics.QUANTITIES)
            if (figure := diagnostics.draw(group, quantity, limits)) is not None
        ]
        if drawn:
            parts.append(
                join(
                    tag("h3", group.title),
                    sections.legend(group, title=False),
                    tag("div", drawn, class_="multiples"),
                )
            )
    words = [
        join(tag("dt", quantity.title), tag("dd", quantity.about)) for quantity in diagnostics.QUANTITIES
    ]
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
