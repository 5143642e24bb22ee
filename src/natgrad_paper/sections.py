"""The parts of the page that are words and tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from natgrad_paper import results as numbers
from natgrad_paper import samples as pictures
from natgrad_paper.claims import INTERVAL, Judged, Verdict
from natgrad_paper.drawing import Group, color
from natgrad_paper.markup import Markup, join, table, tag
from natgrad_paper.measures import View
from natgrad_paper.results import Column
from natgrad_paper.series import Runs

CAPTION = f"Mean over seeds, and in brackets {INTERVAL}."
MARKS = {
    Verdict.HOLDS: ("holds", "✓"),
    Verdict.FAILS: ("fails", "✗"),
    Verdict.OPEN: ("open", "?"),
    Verdict.EQUAL: ("open", "="),
    Verdict.VOID: ("void", "∅"),
    Verdict.ABSENT: ("void", "–"),
}


def legend(group: Group, title: bool = True) -> Markup:
    """Return the names of a group's methods, each with a piece of its line."""
    dashes = " ".join(f"{2 * length:g}" for length in group.dashes) or None
    entries = [
        tag(
            "li",
            tag(
                "svg",
                tag(
                    "path",
                    d="M0 5H30",
                    stroke=f"var(--c{color(runs)[1:]})",
                    stroke_width=3,
                    stroke_dasharray=dashes,
                ),
                viewBox="0 0 30 10",
                aria_hidden="true",
            ),
            runs.label,
        )
        for runs in group.runs
    ]
    return tag("ul", tag("li", tag("b", group.title)) if title else None, entries, class_="legend")


def results(groups: Sequence[Group], runs: Sequence[Runs], view: View) -> Markup:
    """Return the table of results: errors where all runs can be compared and at the end, times to given errors."""
    columns = numbers.columns(runs, view)
    best = [column.best(runs) for column in columns]
    head = ["method", *(column.words for column in columns)]
    rows: list[list[Any]] = []
    for group in groups:
        for method in group.runs:
            cells = [
                _number(column, method, name == method.name)
                for column, name in zip(columns, best, strict=True)
            ]
            rows.append([method.label, *cells])
    shown = "; ".join(f"{m.name}: {' '.join(m.title.split())}" for m in view.measures)
    means = {"log": "geometric", "linear": "arithmetic"}
    kinds = " or ".join(dict.fromkeys(means[measure.scale.name] for measure in view.measures))
    caption = (
        f"{shown[0].upper()}{shown[1:]}. {kinds.capitalize()} mean over seeds, as the figure draws it, with least "
        "and largest. Equal time and equal iterations are the most that all complete runs reached. "
        "Not measured: no evaluation is near. A dash: never reached; “2 of 3”: by so many seeds. Bold: the least of "
        "its column."
    )
    return tag("section", tag("h2", "Results"), table(head, rows, caption, class_="numbers", id="results"))


def _number(column: Column, method: Runs, best: bool) -> Markup:
    values = column.values[method.name]
    if not values and column.at is not None:
        return tag("small", "not measured")
    mean, rest = numbers.spread(values, len(method.logs), column.measure.scale)
    return join(tag("span", mean, class_="best" if best else None), tag("small", rest) if rest else None)


def claims(
    judged: Sequence[Judged], rule: Sequence[tuple[str, str]], caption: str = CAPTION
) -> Markup | None:
    """Return the table of claims: words, what was measured, the verdict."""
    if not judged:
        return None
    rows: list[list[Any]] = [
        [
            f"({each.claim.key})",
            join(
                each.claim.words,
                tag("span", f"{each.claim.source} Test: {each.claim.rule}".strip(), class_="who"),
            ),
            tag(
                "ul",
                [
                    tag(
                        "li",
                        tag("span", mark, class_=f"mark {style}", title=str(finding.verdict)),
                        finding.words,
                    )
                    for finding in each.findings
                    for style, mark in (MARKS[finding.verdict],)
                ],
            ),
            verdict(each.verdict),
        ]
        for each in judged
    ]
    return tag(
        "section",
        tag("h2", "The claims"),
        tag("h3", "The rule"),
        tag("dl", [join(tag("dt", term), tag("dd", words)) for term, words in rule], class_="rule"),
        table(
            ["", "claim", "measured", "verdict"],
            rows,
            caption,
            class_="claims",
            id="claims",
        ),
    )


def verdict(found: Verdict) -> Markup:
    """Return a verdict as a badge: told apart by its words and its sign, not by color alone."""
    style, mark = MARKS[found]
    return tag("span", f"{mark} {found}", class_=f"verdict {style}")


def sights(stages: Sequence[tuple[str, np.ndarray]]) -> Markup | None:
    """Return what the data look like, stage by stage."""
    if not stages:
        return None
    shown = [
        tag(
            "figure",
            tag("img", src=pictures.montage(images), alt=f"cases of the data, {stage}", class_="sight"),
            tag("figcaption", stage),
        )
        for stage, images in stages
    ]
    return tag(
        "section", tag("h2", "What the data look like"), tag("div", shown, class_="sights"), id="sights"
    )


def samples(found: tuple[np.ndarray, list[tuple[Runs, int, np.ndarray]]] | None) -> Markup:
    """Return the originals and a row of reconstructions for each method."""
    if found is None:
        return tag("section", tag("h2", "Sample reconstructions"), tag("p", "The logs hold no samples."))
    cases, rows = found
    strips = [("original", f"{len(cases)} cases of the data", cases)]
    strips += [
        (runs.label, f"the same cases as {runs.label} reconstructs them, seed {seed}", strip)
        for runs, seed, strip in rows
    ]
    seeds = sorted({seed for _, seed, _ in rows})
    return tag(
        "section",
        tag("h2", "Sample reconstructions"),
        table(
            ["method", f"at the end of the run, seed {', '.join(map(str, seeds))}"],
            [
                [name, tag("img", src=pictures.address(strip), alt=alt, class_="strip")]
                for name, alt, strip in strips
            ],
            class_="samples",
            id="samples",
        ),
    )


def time(runs: Sequence[Runs]) -> Markup:
    """Return where the time went, as numbers and as bars."""
    rows: list[list[Any]] = []
    spent = {group.name: numbers.clocks(group) for group in runs}
    longest = max((sum(clocks.values()) for clocks in spent.values()), default=0) or 1.0
    for group in runs:
        clocks = spent[group.name]
        parts = [
            tag("span", class_=name, style=f"width:{100 * clocks[field] / longest:.2f}%")
            for field, name in numbers.CLOCKS.items()
        ]
        steps = [record["iteration"] for record in group.final() if record["iteration"]]
        each = 1000 * clocks["training_seconds"] / np.mean(steps) if steps else None
        cells = [f"{clocks[field]:.1f}" for field in numbers.CLOCKS]
        rows.append(
            [
                group.label,
                *cells,
                f"{np.mean(steps):,.0f}".replace(",", " ") if steps else "–",
                numbers.number(float(each)) if each else "–",
                tag("div", parts, class_="bar", aria_hidden="true"),
            ]
        )
    keys: list[Any] = [
        join(tag("span", class_=f"key {name}"), f"{name}, s") for name in numbers.CLOCKS.values()
    ]
    return tag(
        "section",
        tag("h2", "Where the time went"),
        table(
            ["method", *keys, "steps", "ms a step", "shares"],
            rows,
            "Seconds of a run, mean over seeds. Only training counts in the figure; a method is compiled once for "
            "all seeds.",
            class_="numbers",
            id="time",
        ),
    )


def troubles(found: Sequence[tuple[str, int, str, str]], runs: int) -> Markup:
    """Return the runs with refused steps or an early end; a sentence where there are none."""
    words = f"Every one of the {runs} runs used its budget, and no step was refused."
    return tag(
        "section",
        tag("h2", "Refused steps and early ends"),
        table(
            ["method", "seed", "how it ended", "steps refused"], [list(row) for row in found], id="troubles"
        )
        if found
        else tag("p", words),
    )


def settings(rows: list[list[str]]) -> Markup:
    """Return all settings, folded away."""
    return tag(
        "section",
        tag("h2", "Settings"),
        tag(
            "details",
            tag("summary", f"All {len(rows)} fields"),
            table(["field", "value"], list(rows), class_="settings", id="settings"),
        ),
    )


def command(words: str) -> Markup:
    """Return how to make the logs and this page again."""
    return tag(
        "section",
        tag("h2", "The command"),
        tag("pre", tag("code", f"{words} --out DIR\nnatgrad report DIR")),
        tag(
            "p",
            "The report is a function of the logs alone: the second line gives this very page, the figure, "
            "results.csv and claims.csv.",
        ),
    )
