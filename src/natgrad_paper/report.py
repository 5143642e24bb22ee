"""The figure of a run, drawn from its logs alone: the errors of the experiment's view, a line a method."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from natgrad_paper.drawing import INK, SOFT, STYLE, Group, blank, color, dress, grouped, save
from natgrad_paper.errors import UserError
from natgrad_paper.log import RunLog, done
from natgrad_paper.measures import AXES, RECONSTRUCTION, Panel, View
from natgrad_paper.series import Line, Runs, by_method

Titled = Sequence[tuple[str, Sequence[str]]]


def write_figure(
    logs: list[RunLog], directory: Path, groups: Titled = (), view: View = RECONSTRUCTION
) -> list[Path]:
    """Draw the figure into `<experiment>.svg` and `.png` in the directory; return the two paths."""
    figure = draw(logs, groups, view)
    name = logs[0].header["experiment"]
    return [save(figure, directory / f"{name}.{suffix}") for suffix in ("svg", "png")]


def check(logs: list[RunLog]) -> None:
    """Refuse logs that do not belong into one figure."""
    for what, found in (
        ("experiment", {log.header["experiment"] for log in logs}),
        ("data set", {log.header["data"]["sha256"] for log in logs}),
    ):
        if len(found) > 1:
            raise UserError(f"expected logs of one {what} in a figure, found {len(found)} different ones")


def draw(logs: list[RunLog], groups: Titled = (), view: View = RECONSTRUCTION) -> Figure:
    """Return the figure: panels side by side, and in small print what it rests on."""
    check(logs)
    parts = grouped(by_method(logs), groups)
    with matplotlib.rc_context(STYLE):
        figure = blank(12, 5.6)
        axes = figure.subplots(1, len(view.panels), sharey=view.shared, squeeze=False)[0]
        for k, (panel, place) in enumerate(zip(view.panels, axes, strict=True)):
            draw_panel(place, parts, panel)
            if k == 0 or not view.shared:
                place.set_ylabel(panel.measure.title)
        figure.suptitle(title(logs), x=0.065, y=0.965, ha="left", fontsize=12.5, fontweight="bold")
        figure.text(
            0.065, 0.025, small_print(logs, parts), fontsize=7, color=SOFT, va="bottom", linespacing=1.5
        )
        space = 0.06 if view.shared else 0.18
        figure.subplots_adjust(left=0.065, right=0.845, top=0.9, bottom=0.235, wspace=space)
        label_ends(axes[-1], parts, view.panels[-1])
    return figure


def panels(
    logs: list[RunLog], groups: Titled = (), view: View = RECONSTRUCTION
) -> list[tuple[Panel, Figure]]:
    """Return the panels as figures of their own, for pages on which one may stand below the other."""
    parts = grouped(by_method(logs), groups)
    figures = []
    with matplotlib.rc_context(STYLE):
        for k, panel in enumerate(view.panels):
            last, titled = panel == view.panels[-1], k == 0 or not view.shared
            # In inches: room for a title on the left, and for the methods' names on the right of the last panel.
            left, plot, right = (0.73 if titled else 0.55), (3.8 if last else 4.2), (1.75 if last else 0.07)
            width = left + plot + right
            figure = blank(width, 4.4)
            axes = figure.subplots()
            draw_panel(axes, parts, panel)
            figure.subplots_adjust(left=left / width, right=1 - right / width, top=0.975, bottom=0.115)
            if titled:
                axes.set_ylabel(panel.measure.title)
            if last:
                label_ends(axes, parts, panel)
            figures.append((panel, figure))
    return figures


def draw_panel(axes: Axes, groups: list[Group], panel: Panel) -> None:
    """Draw the error of every method along an axis: mean, and the range over seeds."""
    axes.set_xscale("log")
    axes.set_yscale(panel.measure.scale.name)
    for group in groups:
        for runs in group.runs:
            line = runs.line(panel)
            if line is None:
                continue
            axes.plot(
                line.x, line.mean, color=color(runs), lw=1.7, ls=group.style,
                gid=f"line-{panel.name}-{runs.name}",
            )  # fmt: skip
            if len(line.x) == 1:
                axes.plot(line.x, line.mean, color=color(runs), marker="o", ms=3)
            if len(runs.logs) > 1:
                axes.fill_between(line.x, line.low, line.high, color=color(runs), alpha=0.14, lw=0)
    axes.set_xlabel(AXES[panel.axis])
    dress(axes)


def label_ends(axes: Axes, groups: list[Group], panel: Panel, height: float = 0.047) -> None:
    """Name the lines right of a panel, each as near its end as the others let it; call it when all is drawn."""
    ends: list[tuple[float, Any, Runs, Line]] = []
    for group in groups:
        for runs in group.runs:
            if (line := runs.line(panel)) is not None:
                height_at = axes.transData.transform((line.x[-1], line.mean[-1]))
                ends.append(
                    (float(axes.transAxes.inverted().transform(height_at)[1]), group.style, runs, line)
                )
    ends.sort(key=lambda end: end[0])
    for place, (_, dashes, runs, line) in zip(apart([end[0] for end in ends], height), ends, strict=True):
        axes.annotate(
            "", (line.x[-1], line.mean[-1]), (1.035, place), "data", "axes fraction", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": SOFT, "alpha": 0.6, "shrinkA": 0, "shrinkB": 1},
        )  # fmt: skip
        axes.plot(
            [1.04, 1.095], [place, place], transform=axes.transAxes, clip_on=False,
            color=color(runs), lw=1.7, ls=dashes,
        )  # fmt: skip
        axes.text(1.11, place, runs.label, transform=axes.transAxes, va="center", fontsize=8, color=INK)


def apart(places: list[float], gap: float) -> list[float]:
    """Return rising numbers of [0, 1] moved apart to at least a gap, or as far as there is room for."""
    gap = min(gap, 1 / max(1, len(places) - 1))
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else max(place, 0.0))
    ceiling = 1.0
    for k in reversed(range(len(moved))):
        moved[k] = min(moved[k], ceiling)
        ceiling = moved[k] - gap
    return moved


def title(logs: list[RunLog]) -> str:
    """Return the figure's title."""
    data, presets = logs[0].header["data"], sorted({log.header["preset"] for log in logs})
    return f"{data['name']}: {data['train'][0]} training images, preset {', '.join(presets)}"


def small_print(logs: list[RunLog], groups: Sequence[Group] = ()) -> str:
    """Return what a reader needs to judge and repeat the figure: data, preset, seeds, versions, machine."""
    header = logs[0].header
    presets = sorted({log.header["preset"] for log in logs})
    cut = sum(not done(log.end) for log in logs)
    dashes = [f"{group.drawn}: {group.title.lower()}" for group in groups]
    lines = [
        f"Data: {header['data']['name']}, sha256 {header['data']['sha256'][:16]}…"
        f"   Preset: {', '.join(presets)}   {seeds_in_words(logs)}",
        "Training time excludes compiling and evaluating."
        + "".join(f"   {words}" for words in ratios(logs))
        + (f"   {cut} of {len(logs)} runs did not finish" if cut else ""),
        versions(logs)
        + "   "
        + "; ".join(machines(logs))
        + ("   Lines: " + ", ".join(dashes)) * (len(groups) > 1),
    ]
    return "\n".join(lines)


def ratios(logs: list[RunLog]) -> list[str]:
    """Return with which model of the loss λ follows its ratio, and where several do, whose; old logs do not say."""
    found: dict[str, dict[str, None]] = {}
    for runs in by_method(logs):
        for log in runs.logs:
            if isinstance(rule := log.header.get("damping"), dict):
                found.setdefault(str(rule.get("reduction")), {})[runs.label] = None
    return [
        f"λ follows the ratio with the {model} model" + f" ({', '.join(labels)})" * (len(found) > 1)
        for model, labels in found.items()
    ]


def versions(logs: list[RunLog]) -> str:
    """Return the versions of everything the runs used; several of a package where they differ."""
    found: dict[str, set[str]] = {}
    for log in logs:
        for name, version in log.header["versions"].items():
            found.setdefault(name, set()).add(str(version))
    return ", ".join(f"{name} {' and '.join(sorted(each))}" for name, each in found.items())


def machines(logs: list[RunLog]) -> list[str]:
    """Return the machines of the runs, as far as logs describe them."""
    return sorted({f"{log.header['cores']} cores, {log.header['platform']}" for log in logs})


def seeds_in_words(logs: list[RunLog]) -> str:
    """Return the seeds, and what the spread in the figure means."""
    seeds = sorted({log.header["seed"] for log in logs})
    if len(seeds) == 1:
        return f"Seed: {seeds[0]} (one run: no spread to show)"
    return f"Seeds: {', '.join(map(str, seeds))} (mean; band: least to largest)"
