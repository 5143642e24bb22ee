"""The figure and the sections of figure 2's report: variances, the matching, small rates, the drift."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from natgrad_paper.figures.order import numbers
from natgrad_paper.figures.order.protocol import BACKWARDS, FORWARDS, UNPERTURBED
from natgrad_paper.report.curves import Line
from natgrad_paper.report.figure import blank, draw_line, dress, small_print, styled, title
from natgrad_paper.report.load import Runs
from natgrad_paper.report.parts import Cell, Part, Picture, Table
from natgrad_paper.report.tables import spread
from natgrad_paper.report.views import LINEAR, Measure, Panel, View

ERROR = Measure("valid_misclassified", "validation error", "misclassified examples, %", LINEAR, "%", 100.0)
VIEW = View((Panel(ERROR),), (), "Variance against the segment that was replaced")
VARIANCE = "variance of the outputs"
STREAMS = {UNPERTURBED: "equal mix", FORWARDS: "from 0 to z", BACKWARDS: "from z to 0"}
CAPTION = (
    "Left: how much the outputs on held-out examples vary over trainings that differ in the examples of one segment. "
    "Right: the same, divided by its own mean over the segments. Lines: geometric mean over seeds; bands: least to "
    "largest."
)


def draw(runs: Runs) -> Figure:
    """Return the figure: the variance against the segment that was replaced, and divided by its own mean."""
    with styled():
        drawn = blank(12, 5.2)
        panels = drawn.subplots(1, 2)
        for method in runs.methods:
            found = numbers.along(numbers.measures(runs, "segment"), method, "segment").dropna()
            for axes, curves in zip(panels, (found, found.div(found.mean(axis=1), axis=0)), strict=True):
                if len(curves) and (curves > 0).all(axis=None):
                    logs = np.log(curves.to_numpy(float))
                    ends = (np.exp(part) for part in (logs.mean(axis=0), logs.min(axis=0), logs.max(axis=0)))
                    line, label = Line(curves.columns.to_numpy(float), *ends), runs.label(method)
                    draw_line(
                        axes, line, runs.color(method), marker="o", ms=3.5, label=label, gid=f"line-{method}"
                    )
        for axes, words in zip(panels, (VARIANCE, "variance / its mean over segments"), strict=True):
            axes.set(yscale="log", xlabel="segment that was replaced", ylabel=words)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            dress(axes)
        if panels[0].lines:
            panels[0].legend()
        title(drawn, runs, "Replacing one segment of the stream")
        small_print(drawn, runs)
    return drawn


def sections(runs: Runs) -> list[Part]:
    """Return the sections of the report beside the figure and the claims."""
    return [results(runs), matching(runs), controls(runs)]


def results(runs: Runs) -> Part:
    """Return the table of results, one row per method."""
    segments, drifts = (numbers.measures(runs, kind) for kind in ("segment", "drift"))
    matched = numbers.measures(runs, "matched", "name")
    last = segments["segment"].max() if "segment" in segments else 0
    columns: dict[str, tuple[pd.DataFrame, str, float]] = {
        "rate": (matched, "rate", 1),
        "validation error, %": (numbers.trainings(runs, "segment"), "error", 100),
        "variance": (segments, "variance", 1),
        "of logits": (segments, "logit_variance", 1),
        "first segment": (segments.query("segment == 1") if last else segments, "variance", 1),
        "last segment": (segments.query("segment == @last") if last else segments, "variance", 1),
        "error after drift, %": (numbers.trainings(runs, "drift"), "error", 100),
        "between drifts": (drifts, "variance", 1),
    }
    rows: list[list[str | Cell]] = []
    for method in runs.methods:
        cells = []
        for table, field, factor in columns.values():
            own = table[table["method"] == method] if field in table else table.iloc[:0]
            means = [factor * mean for mean in own.groupby("seed")[field].mean()] if len(own) else []
            cells.append(spread(means, len(runs.method(method)), Measure(field, field, field)))
        rows.append([runs.label(method), *cells])
    caption = (
        "Geometric means over seeds, with least and largest. Rate: the matched one. Validation error: mean over all "
        "trainings with a segment replaced. Variance: of the class probabilities, mean over segments; of logits, with "
        "each example’s mean logit subtracted; with the first and the last segment replaced. After drift: validation "
        "error on the equal mix, mean of both directions; between drifts: variance of the outputs between the two."
    )
    return Part("Variances", "variances", [Table(["method", *columns], rows, caption, numbers=True)])


def matching(runs: Runs) -> Part:
    """Return the rates that were tried, and the validation errors that were reached."""
    tried, chosen = numbers.trainings(runs, "match"), numbers.measures(runs, "matched", "name")
    rows = []
    for log in (log for method in runs.methods for log in runs.method(method)):
        own, found = (
            table[(table["method"] == log.method) & (table["seed"] == log.seed)] if len(table) else table
            for table in (tried, chosen)
        )
        pairs = sorted(zip(own["rate"], own["error"], strict=True), reverse=True)
        trials = "; ".join(f"{rate:g}: {error:.2%}" for rate, error in pairs)
        rates = [(f"{each.rate:g}", "yes" if each.reached else "no") for each in found.itertuples()]
        rows.append([runs.label(log.method), str(log.seed), trials or "–", *(rates or [("–", "–")])[0]])
    caption = (
        "Unperturbed trainings at falling rates. Both methods start from their own rates; the one with the lower "
        "validation error is slowed down until the errors are equal within the tolerance. The validation examples are "
        "not those on which outputs are compared."
    )
    head = ("method", "seed", "tried, rate: error", "rate", "equal")
    return Part("Matching the rates", "matching", [Table(head, rows, caption)])


def controls(runs: Runs) -> Part:
    """Return the variance against the rate, and the error along streams whose mix of classes drifts."""
    with styled():
        drawn = blank(12, 4.6)
        left, right = drawn.subplots(1, 2)
        for method in runs.methods:
            label, color = runs.label(method), runs.color(method)
            found = numbers.limit(runs, method)
            for number, (_, track) in enumerate(found.iterrows()):
                left.plot(found.columns, track, color=color, marker="o", label=None if number else label)
            for (training, words), dashes in zip(STREAMS.items(), ("solid", "dashed", "dotted"), strict=True):
                logs = [log for log in runs.method(method, training) if log.done]
                table = pd.DataFrame(
                    [{each["iteration"]: ERROR.of(each) for each in log.evaluations} for log in logs]
                )
                if logs:
                    right.plot(table.columns, table.mean(), color=color, ls=dashes, label=f"{label}, {words}")
        left.set(xscale="log", yscale="log", xlabel="rate, as a fraction of the matched one", ylabel=VARIANCE)
        right.set(xlabel="updates", ylabel="validation error on the equal mix, %")
        for axes in (left, right):
            dress(axes)
            if axes.lines:
                axes.legend()
    caption = (
        "Left: variance of the outputs with one segment replaced, against the rate; one line per method and seed. "
        "Where outputs depend on examples linearly, it falls with the square of the rate. Right: validation error on "
        "the equal mix, mean over seeds, along the unperturbed stream and along streams on which the classes come one "
        "after another, at the same rates."
    )
    return Part("Smaller rates, and a drifting mix of classes", "controls", [Picture(drawn, caption)])
