"""The parts of the page that are words and tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from natgrad_paper import results as numbers
from natgrad_paper import samples as pictures
from natgrad_paper.claims import RULE, Judged, Verdict
from natgrad_paper.drawing import Group, color
from natgrad_paper.markup import Markup, join, table, tag
from natgrad_paper.series import ERROR, Runs

RATIOS = "Ratios of errors: mean over seeds, and in brackets two standard errors to either side."
MARKS = {Verdict.HOLDS: ("holds", "✓"), Verdict.FAILS: ("fails", "✗"), Verdict.OPEN: ("open", "?")}


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


def results(groups: Sequence[Group], runs: Sequence[Runs]) -> Markup:
    """Return the table of results: errors at equal time and iterations, and times to given errors."""
    moments, targets = numbers.moments(runs), numbers.targets(runs)
    seconds, iterations = moments["training_seconds"], moments["iteration"]
    columns: list[tuple[str, dict[str, list[float]]]] = []
    for words, axis, where in (
        (f"error at {seconds or 0:.3g} s", "training_seconds", seconds),
        (f"error at {iterations or 0:.0f} iterations", "iteration", iterations),
    ):
        if where:
            columns.append((words, {group.name: group.error_at(where, axis) for group in runs}))
    if any(numbers.final(group, f"test_{ERROR}") for group in runs):
        columns.append(("test error at the end", {g.name: numbers.final(g, f"test_{ERROR}") for g in runs}))
    columns += [
        (f"seconds to {target:g}", {group.name: group.time_to(target) for group in runs})
        for target in targets
    ]
    best = [_best(values, runs) for _, values in columns]
    head = ["method", *(words for words, _ in columns)]
    rows: list[list[Any]] = []
    for group in groups:
        for method in group.runs:
            cells = [
                _number(values[method.name], len(method.logs), name == method.name)
                for (_, values), name in zip(columns, best, strict=True)
            ]
            rows.append([method.label, *cells])
    caption = (
        "Squared error on the training set (sum over pixels, mean over cases): geometric mean over seeds, with least "
        "and largest. Equal time and equal iterations are the most that all complete runs reached. "
        "A dash: never reached; "
        "“2 of 3”: by so many seeds. Bold: the least of its column."
    )
    return tag("section", tag("h2", "Results"), table(head, rows, caption, class_="numbers", id="results"))


def _best(values: dict[str, list[float]], runs: Sequence[Runs]) -> str | None:
    """Return the method with the least mean, among those of which every seed has a value."""
    means = {
        group.name: float(np.mean(np.log(values[group.name])))
        for group in runs
        if values[group.name] and len(values[group.name]) == len(group.logs)
    }
    return min(means, key=lambda name: means[name]) if means else None


def _number(values: list[float], total: int, best: bool) -> Markup:
    mean, rest = numbers.spread(values, total)
    return join(tag("span", mean, class_="best" if best else None), tag("small", rest) if rest else None)


def claims(
    judged: Sequence[Judged], rule: Sequence[tuple[str, str]] = RULE, caption: str = RATIOS
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
        steps = numbers.final(group, "iteration")
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
            "The report is a function of the logs alone: the second line gives this very page, the figure and "
            "results.csv.",
        ),
    )
