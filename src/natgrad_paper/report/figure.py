"""Figures, drawn from runs: errors along iterations and time, and differences between methods seed by seed.

`styled` gives every figure the same style; `svg` and `png` make files that depend on the drawing alone.
"""

import io
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from natgrad_paper.report import provenance
from natgrad_paper.report.claims import SEEDS, interval
from natgrad_paper.report.curves import Line, line, pairs
from natgrad_paper.report.load import Runs
from natgrad_paper.report.views import AXES, CLOCK, Panel, Published, View

INK, SOFT, FAINT = "#222222", "#666666", "#eeeeee"
STYLE = Path(__file__).with_name("style.mplstyle")
DASHES = ("solid", "dashed", "dotted", "dashdot")
"""One style per group of methods; the last is for all further groups."""
FAR = 5.0
"""A line ends far above the others if its end is more than this many times the next lower one."""
MARGIN = 1.25
"""How far above the highest of the other lines an axis ends then."""
Titled = Sequence[tuple[str, Sequence[str]]]
Drawn = tuple[str, str, Line]
"""A method, its dashes and its line."""


@dataclass(frozen=True)
class Group:
    """Methods that belong together in a legend, drawn with the same dashes."""

    title: str
    dashes: str
    """As matplotlib has them."""
    methods: tuple[str, ...]


def grouped(names: Sequence[str], groups: Titled) -> list[Group]:
    """Return the methods by group. Methods in no group form a last one; empty groups are left out."""
    placed = {name for _, members in groups for name in members}
    rest = [name for name in names if name not in placed]
    found = [
        Group(title, DASHES[min(k, len(DASHES) - 1)], tuple(name for name in names if name in members))
        for k, (title, members) in enumerate([*groups, ("Further methods" if groups else "Methods", rest)])
    ]
    return [group for group in found if group.methods]


def styled() -> AbstractContextManager[None]:
    """Return the context for drawing and saving figures."""
    found: AbstractContextManager[None] = matplotlib.style.context(STYLE)
    return found


def blank(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches; call it inside `styled`."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def svg(figure: Figure) -> bytes:
    """Return a figure as SVG, without dates or anything else that changes."""
    return _saved(figure, "svg", dict.fromkeys(("Date", "Creator", "Format", "Type")))


def png(figure: Figure) -> bytes:
    """Return a figure as PNG."""
    return _saved(figure, "png", {"Software": None})


def _saved(figure: Figure, form: str, metadata: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    with styled():
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # Every file format gets the same layout.
        figure.savefig(stream, format=form, metadata=metadata)
    return stream.getvalue()


def draw(runs: Runs, view: View, groups: Titled = (), published: Published | None = None) -> Figure:
    """Return the figure: panels side by side, one line per method, and its sources in small print.

    Published errors are thin lines in the panels of the view's main error.
    """
    parts = grouped(runs.methods, groups)
    with styled():
        figure = blank(12, 5.6)
        axes = figure.subplots(1, len(view.panels), sharey=view.shared, squeeze=False)[0]
        drawn = [
            draw_panel(place, runs, parts, panel) for panel, place in zip(view.panels, axes, strict=True)
        ]
        tops = [
            top([found for _, _, found in lines], panel)
            for lines, panel in zip(drawn, view.panels, strict=True)
        ]
        tops = [max(tops)] * len(tops) if view.shared else tops
        for k, (panel, place) in enumerate(zip(view.panels, axes, strict=True)):
            if published is not None and panel.measure == view.main:
                draw_published(place, published, k == 0)
            cut(place, tops[k])
            place.set_ylabel(panel.measure.title if k == 0 or not view.shared else "")
        for place in axes:
            dress(place)
        label_ends(axes[-1], runs, drawn[-1], [each[:2] for lines in drawn for each in lines])
        title(figure, runs)
        small_print(figure, runs, parts, CLOCK in view.axes, min(tops) < np.inf)
    return figure


def draw_panel(axes: Axes, runs: Runs, groups: Sequence[Group], panel: Panel) -> list[Drawn]:
    """Draw the error of every method along an axis; return what was drawn."""
    axes.set_xscale("log")
    axes.set_yscale(panel.measure.scale.name)
    drawn = []
    for group in groups:
        for name in group.methods:
            if (found := line(runs.method(name), panel)) is not None:
                gid = f"line-{panel.axis}-{panel.measure.field}-{name}"
                draw_line(axes, found, runs.color(name), group.dashes, gid=gid)
                drawn.append((name, group.dashes, found))
    axes.set_xlabel(AXES.get(panel.axis, panel.axis))
    return drawn


def top(lines: Sequence[Line], panel: Panel) -> float:
    """Return where a logarithmic axis of errors should end, because a line ends far above the others; infinity if none.

    More than half of the lines are kept whole. The others may leave the panel.
    """
    rising = sorted(lines, key=lambda each: float(each.mean[-1]))
    ends = [float(each.mean[-1]) for each in rising]
    gaps = [k for k in range(len(ends) // 2 + 1, len(ends)) if ends[k] > FAR * ends[k - 1]]
    if panel.measure.scale.name != "log" or not gaps:
        return np.inf
    highest = max(float(each.high.max()) for each in rising[: gaps[0]])
    return MARGIN * highest if ends[gaps[0]] > MARGIN * highest else np.inf


def cut(axes: Axes, end: float) -> None:
    """End an axis of errors there, if it does not end below."""
    if end < axes.get_ylim()[1]:
        axes.set_ylim(top=end)


def draw_published(axes: Axes, published: Published, named: bool) -> None:
    """Draw published errors as thin lines across a panel, named or not."""
    for words, error in published.errors.items():
        axes.axhline(error, color=SOFT, lw=0.5, gid=f"published-{error:g}")
        if named:
            place = axes.get_yaxis_transform()
            axes.text(
                0.01, error, f"{words}: {error:g}", transform=place, va="bottom", fontsize=6.5, color=SOFT
            )


def draw_line(axes: Axes, found: Line, color: str, dashes: str = "solid", **looks: Any) -> None:
    """Draw a mean with the range around it; further options go to matplotlib."""
    marker: dict[str, Any] = {"marker": "o", "ms": 3} if len(found.x) == 1 else {}
    axes.plot(found.x, found.mean, color=color, ls=dashes, **marker | looks)
    if (found.low < found.high).any():
        axes.fill_between(found.x, found.low, found.high, color=color, alpha=0.14, lw=0)


def label_ends(
    axes: Axes,
    runs: Runs,
    drawn: Sequence[Drawn],
    every: Iterable[tuple[str, str]] = (),
    height: float = 0.047,
) -> None:
    """Name the lines to the right of a panel, each as near its end as the others allow; call it after all drawing.

    Methods that only other panels show are named, too. A name says where its line ends, if that is above the panel.
    """
    over = axes.transData - axes.transAxes
    highest = axes.get_ylim()[1]
    ends = {name: float(found.mean[-1]) for name, _, found in drawn}
    tips = {name: (found.x[-1], min(ends[name], highest)) for name, _, found in drawn}
    places = {name: float(over.transform(tip)[1]) for name, tip in tips.items()}
    names = dict(every) | {name: dashes for name, dashes, _ in drawn}
    rising = sorted(names, key=lambda name: places.get(name, 0.0))
    looks = {"arrowstyle": "-", "lw": 0.5, "color": SOFT, "alpha": 0.6, "shrinkA": 0, "shrinkB": 1}
    where: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    for name, place in zip(rising, apart([places.get(name, 0.0) for name in rising], height), strict=True):
        if name in tips:
            tip, end = tips[name], (1.035, place)
            axes.annotate("", tip, end, "data", "axes fraction", looks, annotation_clip=False)
        axes.plot([1.04, 1.095], [place, place], color=runs.color(name), ls=names[name], **where)
        above = f" ↑ {tick_label(ends[name])}" if ends.get(name, 0.0) > highest else ""
        axes.text(1.11, place, runs.label(name) + above, va="center", fontsize=8, color=INK, **where)


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Return increasing numbers of [0, 1], moved apart by at least a gap, or as far as there is room."""
    steps = min(gap, 1 / max(1, len(places) - 1)) * np.arange(len(places))
    moved = np.maximum.accumulate(np.maximum(places, 0.0) - steps) + steps
    return [float(place) for place in np.minimum(moved, 1 - steps[::-1])]


def draw_differences(runs: Runs, compared: Sequence[tuple[str, str]], *panels: Panel) -> Figure:
    """Return the differences of pairs of methods, seed by seed, with their means and intervals, one panel per error."""
    names = [f"{runs.label(lower)} against {runs.label(upper)}" for lower, upper in compared]
    with styled():
        figure = blank(5.5 * len(panels) + 2, 1.6 + 0.36 * len(compared))
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for panel, place in zip(panels, axes, strict=True):
            scale = panel.measure.scale
            place.set_xscale(scale.name)
            least = scale.effect()[0]
            place.axvspan(*scale.back([-least, least]), color=FAINT)
            place.axvline(float(scale.back(0.0)), color=SOFT, lw=0.8)
            for row, (lower, upper) in enumerate(compared):
                found, color = pairs(runs, lower, upper, panel).differences, runs.color(lower)
                place.plot(scale.back(found), np.full(len(found), row), "o", ms=3.5, color=color, alpha=0.5)
                if len(found) >= SEEDS:
                    mean, *ends = scale.back(list(interval(found)))
                    place.plot(ends, [row, row], color=color)
                    place.plot([mean], [row], "D", ms=5, color=color)
            sign = "/" if scale.name == "log" else "−"
            place.set_xlabel(f"{panel.measure.label}: the first’s {sign} the second’s")
            dress(place)
        axes[0].set_yticks(range(len(names)), names)
        axes[0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def dress(axes: Axes) -> None:
    """Give a panel with logarithmic axes plain tick labels; call it when its limits are set."""
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if axis.get_scale() != "log":
            continue
        low, high = axis.get_view_interval()
        decades = np.log10(high / low) if low > 0 else 0
        axis.set_major_formatter(FuncFormatter(tick_label))
        axis.set_minor_formatter(NullFormatter())
        # Over less than about two decades, one tick per decade is too few.
        if decades < 0.5:
            axis.set_major_locator(MaxNLocator(5))
            axis.set_minor_locator(NullLocator())
        elif decades < 2:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades > 0.9 else (1, 1.5, 2, 3, 4, 6)))
        elif name == "y":
            axes.grid(which="minor", axis="y", color=FAINT, lw=0.5)


def tick_label(value: float, _: Any = None) -> str:
    """Return a number as a tick label."""
    if 10 <= value < 1e5:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}".replace("e-0", "e−").replace("e-", "e−").replace("e+0", "e")


def title(figure: Figure, runs: Runs, words: str = "") -> None:
    """Write a title above a figure: the given words, or else the data and their number of cases."""
    data = runs.header["data"]
    words = words or ": ".join(part for part in (data["name"], provenance.cases(data)) if part)
    words += f", preset {provenance.presets_used(runs)}"
    figure.suptitle(words, x=0.01, ha="left", fontsize=12.5, fontweight="bold")


def small_print(
    figure: Figure, runs: Runs, groups: Sequence[Group] = (), timed: bool = False, cut_off: bool = False
) -> None:
    """Write below a figure what a reader needs to judge and repeat it."""
    data, unfinished = runs.header["data"], sum(not log.done for log in runs.logs)
    dashes = ", ".join(f"{each.dashes}: {each.title.lower()}" for each in groups)
    lines = f"Lines: {dashes.replace('dashdot', 'dash-dotted')}"
    what = [f"Data: {data['name']}, sha256 {data['sha256'][:16]}…", provenance.seeds_used(runs)]
    how = ["Training time excludes compiling and evaluating"] * timed + provenance.ratios(runs)
    how += ["↑: where a line ends that leaves the panel"] * cut_off
    how += [f"{unfinished} of {len(runs.logs)} runs did not finish"] * (unfinished > 0)
    how += [lines] * (len(groups) > 1)
    where = [provenance.versions(runs), provenance.machines(runs)]
    words = "\n".join("  ·  ".join(row) for row in (what, how, where) if row)
    figure.supxlabel(words, x=0.01, ha="left", fontsize=7, color=SOFT, linespacing=1.5)
