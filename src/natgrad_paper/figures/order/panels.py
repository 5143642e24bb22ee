"""The figure and the sections of figure 2's report: variances, the matching, small rates, the drift."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from natgrad_paper.figures.order.numbers import Measured, measured, unperturbed_error
from natgrad_paper.figures.order.protocol import BACKWARDS, FORWARDS, UNPERTURBED
from natgrad_paper.report.curves import Line
from natgrad_paper.report.figure import blank, draw_line, dress, small_print, styled, title
from natgrad_paper.report.load import Runs
from natgrad_paper.report.parts import Cell, Part, Picture, Table
from natgrad_paper.report.views import LINEAR, LOGARITHMIC, Measure, Panel, View

VIEW = View(
    (
        Panel(
            Measure(
                "valid_misclassified", "validation error", "misclassified examples, %", LINEAR, "%", 100.0
            )
        ),
    ),
    (),
    "Variance against the segment that was replaced",
)
VARIANCE = "variance of the outputs"
DASHES = {UNPERTURBED: "-", FORWARDS: (0, (4.5, 1.6)), BACKWARDS: (0, (1.2, 1.2))}
STREAMS = {UNPERTURBED: "equal mix", FORWARDS: "from 0 to z", BACKWARDS: "from z to 0"}


def figure(runs: Runs) -> Figure:
    """Return the figure: the variance against the segment that was replaced, and divided by its own mean."""
    with styled():
        drawn = blank(12, 5.2)
        panels = drawn.subplots(1, 2)
        for axes, of, words in zip(
            panels,
            (Measured.curve, lambda found: found.curve() / found.curve().mean()),
            (f"{VARIANCE}\n(mean over examples and classes)", "variance / its mean over segments"),
            strict=True,
        ):
            axes.set_yscale("log")
            for method in runs.methods:
                _variances(axes, runs, method, of)
            axes.set(xlabel="segment that was replaced", ylabel=words)
            dress(axes)
        if panels[0].lines:
            panels[0].legend(frameon=False)
        title(drawn, runs, "Replacing one segment of the stream")
        small_print(drawn, runs)
    return drawn


def _variances(axes: Axes, runs: Runs, method: str, of: Callable[[Measured], np.ndarray]) -> None:
    """Draw a curve of a method: geometric mean over seeds, and their range."""
    curves = [of(found) for found in measured(runs, method) if len(found.curve())]
    longest = max(map(len, curves), default=0)
    curves = [found for found in curves if len(found) == longest and (found > 0).all()]
    if curves:
        logs, x = np.log(np.stack(curves)), np.arange(1, longest + 1)
        line = Line(x, *(np.exp(part) for part in (logs.mean(axis=0), logs.min(axis=0), logs.max(axis=0))))
        looks = {"marker": "o", "ms": 3.5, "label": runs.label(method)}
        draw_line(axes, line, runs.color(method), gid=f"line-{method}", **looks)
        axes.set_xticks(x)


def sections(runs: Runs) -> list[Part]:
    """Return what the report tells beside the figure and the claims."""
    return [results(runs), matching(runs), *limit(runs), *drift(runs), time(runs)]


def results(runs: Runs) -> Part:
    """Return the table of results."""
    rows = []
    for method in runs.methods:
        found = [each for each in measured(runs, method) if len(each.curve())]
        columns = (
            ([rate for each in found if (rate := each.matched().get("rate"))], ""),
            ([100 * float(np.mean(errors)) for each in found if (errors := each.errors("segment"))], " %"),
            ([float(each.curve().mean()) for each in found], ""),
            ([float(each.curve("logit_variance").mean()) for each in found], ""),
            ([float(each.curve()[0]) for each in found], ""),
            ([float(each.curve()[-1]) for each in found], ""),
            ([100 * float(np.mean(errors)) for each in found if (errors := each.errors("drift"))], " %"),
            ([record["variance"] for each in found for record in each.measures("drift")], ""),
        )
        rows.append([runs.label(method), *(_spread(values, unit) for values, unit in columns)])
    head = ("method", "rate", "validation error", "variance", "of logits", "first segment", "last segment",
            "error after drift", "between drifts")  # fmt: skip
    caption = (
        "Geometric means over seeds, with least and largest. Rate: the matched one. Validation error: mean over all "
        "trainings with a segment replaced. Variance: of the class probabilities, mean over segments; of logits, with "
        "each example’s mean logit taken away; with the first and the last segment replaced. After drift: validation "
        "error on the equal mix, mean of both directions; between drifts: variance of the outputs between the two."
    )
    return Part("Variances", "variances", [Table(head, rows, caption, numbers=True)])


def matching(runs: Runs) -> Part:
    """Return the rates that were tried, and the validation errors that were reached."""
    rows = []
    for method in runs.methods:
        for found in measured(runs, method):
            matched, error = found.matched(), unperturbed_error(found)
            rows.append(
                [
                    runs.label(method),
                    str(found.log.seed),
                    "; ".join(f"{rate:g}: {tried:.2%}" for rate, tried in found.trials()) or "–",
                    f"{matched['rate']:g}" if matched else "–",
                    "–" if error is None else f"{error:.2%}",
                    {True: "yes", False: "no", None: "–"}[matched.get("reached")],
                ]
            )
    caption = (
        "Unperturbed trainings at falling rates. Both methods start from their own rates; the one with the lower "
        "validation error is slowed down until the errors are equal within the tolerance. The validation examples are "
        "not those on which outputs are compared."
    )
    head = ("method", "seed", "tried, rate: error", "rate", "error", "equal")
    return Part("Matching the rates", "matching", [Table(head, rows, caption)])


def limit(runs: Runs) -> list[Part]:
    """Return the variance against the rate, both logarithmic."""
    with styled():
        drawn = blank(5.6, 4.2)
        axes = drawn.subplots()
        for method in runs.methods:
            tracks = [points for found in measured(runs, method) if (points := found.limit())]
            for number, points in enumerate(tracks):
                label = {} if number else {"label": runs.label(method)}
                axes.plot(*np.array(points).T, color=runs.color(method), marker="o", ms=3.5, lw=1.2, **label)
        if not axes.lines:
            return []
        axes.set(xscale="log", yscale="log", xlabel="rate, as a part of the matched one", ylabel=VARIANCE)
        axes.legend(frameon=False)
        dress(axes)
    caption = (
        "Variance of the outputs with one segment replaced, against the rate; one line per method and seed. Where the "
        "outputs depend on the examples linearly, it falls with the square of the rate."
    )
    return [Part("Smaller rates", "limit", [Picture(drawn, caption, caption)])]


def drift(runs: Runs) -> list[Part]:
    """Return the error on the equal mix along drifting and not drifting streams, mean over seeds."""
    with styled():
        drawn = blank(5.6, 4.2)
        axes = drawn.subplots()
        for method in runs.methods:
            for training, dashes in DASHES.items():
                tracks = [
                    track for found in measured(runs, method) if len((track := found.trace(training))[0])
                ]
                longest = max((len(x) for x, _ in tracks), default=0)
                alike = [(x, y) for x, y in tracks if len(x) == longest]
                if alike:
                    label = f"{runs.label(method)}, {STREAMS[training]}"
                    mean = 100 * np.mean([y for _, y in alike], axis=0)
                    axes.plot(alike[0][0], mean, color=runs.color(method), ls=dashes, label=label)
        if not axes.lines:
            return []
        axes.set(xlabel="updates", ylabel="validation error on the equal mix, %")
        axes.legend(frameon=False)
    caption = (
        "Validation error on the equal mix, mean over seeds: along the unperturbed stream, and along streams on which "
        "the classes come one after another, at the same rates."
    )
    return [Part("A drifting mix of classes", "drift", [Picture(drawn, caption, caption)])]


def time(runs: Runs) -> Part:
    """Return where the time went."""
    rows = []
    for method in runs.methods:
        for found in measured(runs, method):
            spent = found.spent()
            each = 1000 * spent["training"] / spent["updates"] if spent["updates"] else 0.0
            numbers = f"{spent['updates']:,.0f}".replace(",", " "), f"{spent['refused']:.0f}"
            rows.append(
                [runs.label(method), str(found.log.seed), *numbers, f"{spent['training']:.0f}", f"{each:.3g}"]
            )
    caption = (
        "All trainings of a seed, making the examples included: they are made once and kept while there is room, so "
        "the method that comes first makes most of them."
    )
    head = ("method", "seed", "updates", "refused", "training, s", "ms per update")
    return Part(
        "Where the time of all trainings went", "trainings", [Table(head, rows, caption, numbers=True)]
    )


def _spread(values: Sequence[float], unit: str) -> str | Cell:
    """Return the geometric mean of values, with the least and the largest below."""
    if not values:
        return "–"
    ends = f"{min(values):.3g} – {max(values):.3g}" if len(values) > 1 else ""
    return Cell(f"{float(LOGARITHMIC.back(np.mean(LOGARITHMIC.to(values)))):.3g}{unit}", ends)
