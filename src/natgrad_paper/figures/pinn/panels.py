"""The figure: one panel per equation, our runs as lines, published ones dashed; and the table of times."""

import math
from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from natgrad_paper.figures.arena.contests import Contest, contests
from natgrad_paper.figures.arena.panels import median_cell, small_panels
from natgrad_paper.figures.pinn.claims import GOALS, VIEW
from natgrad_paper.figures.pinn.equations import EQUATIONS
from natgrad_paper.figures.pinn.published import curves, sources
from natgrad_paper.report.curves import compiling, line
from natgrad_paper.report.figure import SOFT, draw_line, dress
from natgrad_paper.report.load import Runs
from natgrad_paper.report.parts import Cell, Part, Table, Words

COLUMNS = 4
LEVELS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
CAPTION = (
    "Relative L2 error against seconds of training, without compiling and evaluating. Lines: mean over seeds; bands: "
    "least to largest. Dashed, gray: published runs with their hardware, named in the order of their last error. "
    "Crosses: the goals."
)


def draw(runs: Runs) -> Figure:
    """Return the figure."""
    return small_panels(runs, draw_equation, "Physics-informed nets", COLUMNS)


def draw_equation(axes: Axes, contest: Contest) -> None:
    """Draw the error of every method along training time, and what was published."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    (panel,) = VIEW.panels
    for name, logs in contest.logs.items():
        if (found := line(logs, panel)) is not None:
            draw_line(axes, found, contest.runs.color(name), lw=1.4, gid=f"{contest.problem}-{name}")
    published = sorted(curves(contest.problem), key=lambda each: -each.relative[-1])
    for place, curve in enumerate(published):
        marker = "D" if len(curve.seconds) == 1 else None
        axes.plot(curve.seconds, curve.relative, color=SOFT, ls="dashed", lw=0.9, marker=marker, ms=3)
        words = f"{curve.method}, {sources()[curve.source].hardware}"
        # In the free corner, in the order in which the lines end: at the ends themselves names would overlap.
        axes.text(0.99, 0.98 - 0.055 * place, words, transform=axes.transAxes, ha="right", va="top", fontsize=6,
                  color=SOFT)  # fmt: skip
    for error, seconds in GOALS.get(contest.problem, ()):
        axes.plot([seconds], [error], "x", color="#222222", ms=5)
    axes.set_xlabel("seconds of training")
    dress(axes)


def sections(runs: Runs) -> Iterator[Part]:
    """Yield the times to errors, equation by equation, and the sources of the dashed lines."""
    for contest in contests(runs):
        about = EQUATIONS[contest.problem].about if contest.problem in EQUATIONS else contest.problem
        yield Part(f"{contest.problem}: {about}", f"equation-{contest.problem}", [equation_table(contest)])
    named = dict.fromkeys(curve.source for each in contests(runs) for curve in curves(each.problem))
    found = [sources()[name] for name in named]
    words = [f"{each.title} ({each.hardware}), {each.address}." for each in found]
    if words:
        yield Part("Sources of the dashed lines", "sources", [Words(" ".join(words))])


def equation_table(contest: Contest) -> Table:
    """Return the seconds to each error, the error at the end, and what the steps cost."""
    rows: list[list[str | Cell]] = []
    for name, logs in contest.logs.items():
        ends = list(contest.ends(name, VIEW.main).values())
        last = [log.evaluations[-1] for log in logs if log.evaluations]
        each = [each["training_seconds"] / each["iteration"] for each in last if each["iteration"]]
        rows.append([
            contest.runs.label(name), *(seconds_to(contest, name, level) for level in LEVELS),
            f"{np.median(ends):.1e}" if ends else "–", f"{1e3 * np.median(each):.3g}" if each else "–",
            f"{compiling(logs):.1f}",
        ])  # fmt: skip
    for curve in curves(contest.problem):
        met = [next((t for t, e in zip(curve.seconds, curve.relative, strict=True) if e <= level), math.inf)
               for level in LEVELS]  # fmt: skip
        shown = [f"≤ {time:g}" if math.isfinite(time) else "–" for time in met]
        words = f"{curve.method}, {sources()[curve.source].hardware}"
        rows.append([words, *shown, f"{min(curve.relative):.1e}", "–", "–"])
    head = ["method", *(f"to {level:g}, s" for level in LEVELS), "at the end", "ms per step", "compiling, s"]
    caption = (
        "Seconds of training to an error: median over seeds, least and largest; how many seeds reached it, where not "
        "all did. For published runs, the first published time at which it was reached."
    )
    return Table(head, rows, caption, numbers=True)


def seconds_to(contest: Contest, method: str, error: float) -> str | Cell:
    """Return the seconds to an error in words."""
    return median_cell(list(contest.times_to(error, method, VIEW.main).values()))
