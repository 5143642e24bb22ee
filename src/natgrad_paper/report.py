"""The figure of a run, drawn from its logs alone: error against iterations and against training time."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from natgrad_paper.errors import UserError
from natgrad_paper.log import FINISHED, RunLog
from natgrad_paper.series import Runs, by_method

AXIS_TITLES = {"iteration": "iterations", "training_seconds": "training time (s)"}
INK, SOFT = "#222222", "#666666"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "svg.hashsalt": "natgrad",  # identifiers in the SVG then depend on the drawing alone
    "svg.fonttype": "none",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
}


def write_figure(logs: list[RunLog], directory: Path) -> list[Path]:
    """Draw the figure into `<experiment>.svg` and `.png` in the directory; return the two paths."""
    name = logs[0].header["experiment"]
    written = []
    with matplotlib.rc_context(STYLE):
        figure = draw(logs)
        for suffix, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
            path = directory / f"{name}.{suffix}"
            figure.savefig(path, dpi=160, metadata=metadata)
            written.append(path)
    return written


def draw(logs: list[RunLog]) -> Figure:
    """Return the figure: two panels that share the error axis, and in small print what it rests on."""
    hashes = {log.header["data"]["sha256"] for log in logs}
    if len(hashes) > 1:
        raise UserError(f"expected logs of one data set in a figure, found {len(hashes)} different ones")
    runs = by_method(logs)
    figure = Figure(figsize=(10, 5.2))
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for panel, axis in zip(panels, AXIS_TITLES, strict=True):
        _draw_panel(panel, runs, axis)
    panels[0].set_ylabel("squared error on the training set\n(sum over pixels, mean over cases)")
    figure.suptitle(_title(logs[0].header), x=0.075, y=0.975, ha="left", fontsize=12.5, fontweight="bold")
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="upper left", bbox_to_anchor=(0.067, 0.932), ncols=len(handles),
            frameon=False, handlelength=1.6, columnspacing=1.8,
        )  # fmt: skip
    figure.text(0.075, 0.025, small_print(logs), fontsize=7, color=SOFT, va="bottom", linespacing=1.5)
    figure.subplots_adjust(left=0.075, right=0.985, top=0.85, bottom=0.235, wspace=0.06)
    return figure


def _draw_panel(panel: Axes, runs: list[Runs], axis: str) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    for group in runs:
        line = group.line(axis)
        if line is None:
            continue
        # A marker an evaluation, as long as they can be told apart.
        marker = "o" if len(line.x) <= 60 else None
        panel.plot(line.x, line.mean, color=group.color, lw=1.8, marker=marker, ms=2.6, label=group.label)
        if len(group.logs) > 1:
            panel.fill_between(line.x, line.low, line.high, color=group.color, alpha=0.18, lw=0)
    panel.set_xlabel(AXIS_TITLES[axis])
    panel.grid(which="major", color="#dddddd", lw=0.7)
    panel.grid(which="minor", axis="y", color="#eeeeee", lw=0.5)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    low, high = panel.get_ylim()
    panel.yaxis.set_major_formatter(FuncFormatter(_plain))
    panel.xaxis.set_major_formatter(FuncFormatter(_plain))
    # Over less than about two decades a tick a decade says too little.
    decades = np.log10(high / low)
    if decades < 2:
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades > 1 else (1, 1.5, 2, 3, 4, 6)))
    panel.yaxis.set_minor_formatter(NullFormatter())


def _plain(value: float, _: Any = None) -> str:
    return f"{value:,.0f}".replace(",", " ") if value >= 10 else f"{value:g}"


def _title(header: dict[str, Any]) -> str:
    cases = header["data"]["train"][0]
    return f"{header['data']['name']}: {cases} training images, preset {header['preset']}"


def small_print(logs: list[RunLog]) -> str:
    """Return what a reader needs to judge and repeat the figure: data, preset, seeds, versions, machine."""
    header = logs[0].header
    versions = sorted({_versions(log.header) for log in logs})
    machines = sorted({f"{log.header['cores']} cores, {log.header['platform']}" for log in logs})
    presets = sorted({log.header["preset"] for log in logs})
    seeds = sorted({log.header["seed"] for log in logs})
    cut = sum(log.end != FINISHED for log in logs)
    damping = header["config"].get("damping", {})
    lines = [
        f"Data: {header['data']['name']}, sha256 {header['data']['sha256'][:16]}…"
        f"   Preset: {', '.join(presets)}   {_seeds(seeds)}",
        "Training time excludes compiling and evaluating."
        f"   λ follows the ratio with the {damping.get('reduction', '–')} model"
        + (f"   {cut} of {len(logs)} runs did not finish" if cut else ""),
        "; ".join(versions) + "   " + "; ".join(machines),
    ]
    return "\n".join(lines)


def _versions(header: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in header["versions"].items())


def _seeds(seeds: list[int]) -> str:
    if len(seeds) == 1:
        return f"Seed: {seeds[0]} (one run: no spread to show)"
    return f"Seeds: {', '.join(map(str, seeds))} (geometric mean; band: least to largest)"
