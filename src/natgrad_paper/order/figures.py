"""The drawings of figure 2's report: the figure itself, the limit of small rates, the drift, and the characters."""

import base64
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from natgrad_paper import report
from natgrad_paper.data import pictures
from natgrad_paper.data.glyphs import CHARACTERS, CLASSES
from natgrad_paper.drawing import NO_METADATA, SOFT, STYLE, blank, color, dress, save
from natgrad_paper.errors import FieldError
from natgrad_paper.log import RunLog
from natgrad_paper.order import numbers
from natgrad_paper.order.protocol import DRIFTS, UNPERTURBED
from natgrad_paper.series import Runs

DASHES = {UNPERTURBED: "-", "drift-forwards": (0, (4.5, 1.6)), "drift-backwards": (0, (1.2, 1.2))}
TITLES = {UNPERTURBED: "equal mix", "drift-forwards": "from 0 to z", "drift-backwards": "from z to 0"}
VARIANCE = "variance of the outputs"


def figure_2(runs: Sequence[Runs]) -> Figure:
    """Return the figure: the variance against the segment that was replaced, and divided by its own mean."""
    with matplotlib.rc_context(STYLE):
        figure = blank(11, 4.9)
        left, right = figure.subplots(1, 2)
        for panel, curve, title in (
            (left, numbers.curve, f"{VARIANCE}\n(mean over examples and classes)"),
            (right, numbers.shape, "variance / its mean over segments"),
        ):
            _lines(panel, runs, curve)
            panel.set_xlabel("segment that was replaced")
            panel.set_ylabel(title)
            panel.set_yscale("log")
            dress(panel)
        if left.lines:
            left.legend(frameon=False, loc="upper right")
        logs = [log for group in runs for log in group.logs]
        head, data = logs[0].header, logs[0].header["data"]
        figure.suptitle(
            f"Replacing one segment of the stream: preset {head['preset']}", x=0.07, y=0.965, ha="left",
            fontsize=12.5, fontweight="bold",
        )  # fmt: skip
        words = (
            f"Data: {data['name']}, sha256 {data['sha256'][:16]}…   {report.seeds_in_words(logs)}\n"
            f"{report.versions(logs)}   {'; '.join(report.machines(logs))}"
        )
        figure.text(0.07, 0.025, words, fontsize=7, color=SOFT, va="bottom", linespacing=1.5)
        figure.subplots_adjust(left=0.09, right=0.985, top=0.89, bottom=0.21, wspace=0.2)
    return figure


def panels(runs: Sequence[Runs]) -> list[tuple[Figure, str]]:
    """Return the two panels as figures of their own, for a page, each with a description."""
    found = []
    with matplotlib.rc_context(STYLE):
        for curve, title in ((numbers.curve, VARIANCE), (numbers.shape, "variance / its mean over segments")):
            figure = blank(5.4, 4.2)
            panel = figure.subplots()
            _lines(panel, runs, curve)
            panel.set_xlabel("segment that was replaced")
            panel.set_ylabel(title)
            panel.set_yscale("log")
            dress(panel)
            figure.subplots_adjust(left=0.16, right=0.98, top=0.97, bottom=0.12)
            found.append((figure, f"{title} against the segment that was replaced, one line per method"))
    return found


def limit(runs: Sequence[Runs]) -> Figure | None:
    """Return the variance against the rate, both logarithmic."""
    tracks = [(group, [points for log in group.logs if (points := numbers.limit(log))]) for group in runs]
    if not any(points for _, points in tracks):
        return None
    with matplotlib.rc_context(STYLE):
        figure = blank(5.4, 4.2)
        panel = figure.subplots()
        for group, found in tracks:
            for points in found:
                panel.plot(*np.array(points).T, color=color(group), marker="o", ms=3.5, lw=1.2)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("rate, as a part of the matched one")
        panel.set_ylabel(VARIANCE)
        dress(panel)
        figure.subplots_adjust(left=0.16, right=0.98, top=0.97, bottom=0.12)
    return figure


def drift(runs: Sequence[Runs]) -> Figure | None:
    """Return the error on the equal mix along drifting and not drifting streams, mean over seeds."""
    with matplotlib.rc_context(STYLE):
        figure = blank(5.4, 4.2)
        panel = figure.subplots()
        for group in runs:
            for training in (UNPERTURBED, *DRIFTS):
                tracks = [track for log in group.logs if len((track := numbers.trace(log, training))[0])]
                longest = max((len(x) for x, _ in tracks), default=0)
                tracks = [track for track in tracks if len(track[0]) == longest]
                if tracks:
                    mean = np.mean([y for _, y in tracks], axis=0)
                    panel.plot(tracks[0][0], 100 * mean, color=color(group), lw=1.6, ls=DASHES[training])
        if not panel.lines:
            return None
        panel.set_xlabel("updates")
        panel.set_ylabel("validation error on the equal mix, %")
        dress(panel)
        figure.subplots_adjust(left=0.13, right=0.98, top=0.97, bottom=0.12)
    return figure


def write(runs: Sequence[Runs], directory: Path) -> list[Path]:
    """Draw the figure into `order.svg` and `order.png`; return the two paths."""
    figure = figure_2(runs)
    return [save(figure, directory / f"order.{suffix}") for suffix in ("svg", "png")]


def samples(stages: np.ndarray, labels: Sequence[int]) -> dict[str, Any]:
    """Return characters of shape (n, stages, height, width), uint8, as a record for a log."""
    packed = base64.b64encode(np.ascontiguousarray(stages).tobytes()).decode("ascii")
    return {"record": "samples", "shape": list(stages.shape), "stages": packed, "labels": list(labels)}


def characters(log: RunLog) -> Figure | None:
    """Return the first characters of the stream as they come and after each deformation, out of a log's samples."""
    if log.samples is None:
        return None
    where = f"log of {log.header['method']['name']}, seed {log.header['seed']}: samples"
    shape: Any = log.samples.get("shape")
    labels: Any = log.samples.get("labels")
    if not (
        isinstance(shape, list) and len(shape) == 4 and all(type(n) is int and 0 < n <= 64 for n in shape)
    ):
        raise FieldError(where, "shape", "[number, stages, height, width], each from 1 to 64", shape)
    known = isinstance(labels, list) and all(type(n) is int and 0 <= n < CLASSES for n in labels)
    if not known or len(labels) != shape[0]:
        raise FieldError(where, "labels", f"{shape[0]} whole numbers from 0 to {CLASSES - 1}", labels)
    try:
        raw = base64.b64decode(str(log.samples.get("stages")), validate=True)
    except ValueError:  # Of which base64's own error is a kind.
        raw = b""
    if len(raw) != math.prod(shape):
        raise FieldError(where, "stages", f"{math.prod(shape)} bytes in base64", len(raw))
    stages = np.frombuffer(raw, np.uint8).reshape(shape)
    title = f"{log.header['data']['name']}: deformed one step after another (seed {log.header['seed']})"
    with matplotlib.rc_context(STYLE):
        return pictures.stages_figure(stages, [CHARACTERS[label] for label in labels], title)


def address(figure: Figure) -> str:
    """Return a figure as the data address of a PNG."""
    stream = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(stream, format="png", dpi=110, metadata=NO_METADATA["png"])
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def _lines(panel: Axes, runs: Sequence[Runs], curve: Callable[[RunLog], np.ndarray]) -> None:
    """Draw a curve of every method: geometric mean over seeds, and their range."""
    for group in runs:
        curves = [found for log in group.logs if len(found := curve(log))]
        longest = max(map(len, curves), default=0)
        curves = [found for found in curves if len(found) == longest and (found > 0).all()]
        if not curves:
            continue
        logs, x = np.log(np.stack(curves)), np.arange(1, longest + 1)
        panel.plot(
            x, np.exp(logs.mean(axis=0)), color=color(group), lw=1.7, marker="o", ms=3.5, label=group.label,
            gid=f"line-{group.name}",
        )  # fmt: skip
        if len(curves) > 1:
            panel.fill_between(
                x, np.exp(logs.min(axis=0)), np.exp(logs.max(axis=0)), color=color(group), alpha=0.14, lw=0
            )
        panel.set_xticks(x)
