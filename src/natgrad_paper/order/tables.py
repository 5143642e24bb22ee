"""The tables of figure 2's report."""

from collections.abc import Sequence

import numpy as np

from natgrad_paper import sections
from natgrad_paper.log import FINISHED, RunLog
from natgrad_paper.markup import Markup, join, table, tag
from natgrad_paper.order import numbers
from natgrad_paper.results import number, spread
from natgrad_paper.series import Runs

RESULTS = ("method", "rate", "validation error", "variance", "of logits", "first segment", "last segment",
           "error after drift", "between drifts")  # fmt: skip


def result_rows(runs: Sequence[Runs]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return each method with its numbers, (mean over seeds, range), in the columns of `RESULTS`."""
    rows = []
    for group in runs:
        logs = [log for log in group.logs if len(numbers.curve(log))]
        curves = [numbers.curve(log) for log in logs]
        columns: list[list[float]] = [
            [rate for log in logs if (rate := numbers.matched(log).get("rate"))],
            [100 * float(np.mean(errors)) for log in logs if (errors := numbers.errors(log))],
            [float(curve.mean()) for curve in curves],
            [float(numbers.curve(log, "logit_variance").mean()) for log in logs],
            [float(curve[0]) for curve in curves],
            [float(curve[-1]) for curve in curves],
            [100 * float(np.mean(errors)) for log in logs if (errors := numbers.drift_errors(log))],
            [found for log in logs if (found := numbers.drift_variance(log)) is not None],
        ]
        cells = [spread(values, len(logs)) for values in columns]
        for place in (1, 6):
            if columns[place]:
                cells[place] = (f"{cells[place][0]} %", cells[place][1])
        rows.append((group.label, cells))
    return rows


def results(runs: Sequence[Runs]) -> Markup:
    """Return the table of results."""
    caption = (
        "Geometric means over seeds, with least and largest. Rate: the matched one. Validation error: mean over all "
        "trainings with a segment replaced. Variance: of the class probabilities, mean over segments; of logits, with "
        "each example’s mean logit taken away; with the first and the last segment replaced. After drift: validation "
        "error on the equal mix, mean of both directions; between drifts: variance of the outputs between the two."
    )
    rows = [
        [label, *(join(mean, tag("small", rest) if rest else None) for mean, rest in cells)]
        for label, cells in result_rows(runs)
    ]
    return tag(
        "section", tag("h2", "Results"), table(list(RESULTS), rows, caption, class_="numbers", id="results")
    )


def matching(runs: Sequence[Runs]) -> Markup:
    """Return the rates that were tried, and the validation errors that were reached."""
    rows = []
    for group in runs:
        for log in group.logs:
            found = numbers.matched(log)
            tried = "; ".join(f"{rate:g}: {error:.2%}" for rate, error in numbers.trials(log))
            error = numbers.unperturbed_error(log)
            rows.append([
                group.label,
                str(log.header["seed"]),
                tried or "–",
                f"{found['rate']:g}" if found else "–",
                "–" if error is None else f"{error:.2%}",
                {True: "yes", False: "no", None: "–"}[found.get("reached")],
            ])  # fmt: skip
    caption = (
        "Unperturbed trainings at falling rates. Both methods start from the preset’s rates; the one with the lower "
        "validation error is slowed down until the errors are equal within the tolerance. The validation examples are "
        "not those on which outputs are compared."
    )
    head = ["method", "seed", "tried, rate: error", "rate", "error", "equal"]
    return tag("section", tag("h2", "Matching the rates"), table(head, rows, caption, id="matching"))


def time(runs: Sequence[Runs]) -> Markup:
    """Return where the time went."""
    rows = []
    for group in runs:
        for log in group.logs:
            spent = numbers.clocks(log)
            each = 1000 * spent["training"] / spent["updates"] if spent["updates"] else 0.0
            rows.append([
                group.label,
                str(log.header["seed"]),
                f"{spent['updates']:,.0f}".replace(",", " "),
                f"{spent['training']:.0f}",
                f"{spent['generating']:.0f}",
                number(each) if each else "–",
            ])  # fmt: skip
    caption = (
        "All trainings of a seed. Examples are made once and kept while there is room, so the method that comes first "
        "makes most of them. Seconds are rough: other work on the machine counts too."
    )
    head = ["method", "seed", "updates", "training, s", "making examples, s", "ms an update"]
    return tag(
        "section", tag("h2", "Where the time went"), table(head, rows, caption, class_="numbers", id="time")
    )


def troubles(logs: Sequence[RunLog]) -> Markup:
    """Return the runs with refused steps or an early end; a sentence where there are none."""
    found = [
        (
            log.header["method"]["label"],
            log.header["seed"],
            "came to its end" if log.end == FINISHED else log.end or "cut off, without a word",
            str(numbers.refused(log)),
        )
        for log in logs
        if log.end != FINISHED or numbers.refused(log)
    ]
    return sections.troubles(found, len(logs))
