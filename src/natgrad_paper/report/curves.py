"""Curves out of logs: what figures draw and claims compare, computed from the evaluations alone."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from natgrad_paper.report.load import Runs
from natgrad_paper.report.views import CLOCK, Measure, Panel
from natgrad_paper.training.log import RunLog

FAR = 1.5
"""Two evaluations are far apart if the later one's place is more than this many times the earlier one's."""


class Line(NamedTuple):
    """A method's error along one axis: the mean over seeds, with the least and the largest."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def points(log: RunLog, panel: Panel) -> tuple[np.ndarray, np.ndarray]:
    """Return a log's evaluations as (place on the axis, error), without those that the figure cannot show."""
    pairs = [(record.get(panel.axis), panel.measure.of(record)) for record in log.evaluations]
    kept = [(x, y) for x, y in pairs if x is not None and x > 0 and y is not None]
    return np.array([x for x, _ in kept], float), np.array([y for _, y in kept], float)


def line(logs: Sequence[RunLog], panel: Panel) -> Line | None:
    """Return the error along the panel's axis, over the range that every seed covers, if there is one.

    Runs cut short from outside are left out if there are complete ones; a run that stopped itself keeps its error.
    """
    counted = [log for log in logs if log.complete] or logs
    kept = [(log, track) for log in counted if len((track := points(log, panel))[0])]
    if not kept:
        return None
    tracks = [track for _, track in kept]
    low = max(x[0] for x, _ in tracks)
    high = min([x[-1] for log, (x, _) in kept if not log.gave_up] or [x[-1] for x, _ in tracks])
    x = np.unique(np.concatenate([x for x, _ in tracks]))
    x = x[(x >= low) & (x <= high)]
    if not len(x):
        return None
    scale = panel.measure.scale
    ys = np.stack([np.interp(np.log(x), np.log(xs), scale.to(ys)) for xs, ys in tracks])
    return Line(x, *(scale.back(part) for part in (ys.mean(axis=0), ys.min(axis=0), ys.max(axis=0))))


def reach(log: RunLog, axis: str) -> float:
    """Return how far along an axis the run's error is known."""
    return math.inf if log.gave_up and log.evaluations else _end(log, axis)


def common(logs: Iterable[RunLog], axis: str) -> float | None:
    """Return the farthest place on an axis that every complete run reached; if none is complete, that every run did."""
    found = [log for log in logs if log.evaluations]
    counted = [log for log in found if log.complete] or found
    # If every run stopped itself early, take the place where the first one stopped.
    ends = [end for log in counted if (end := reach(log, axis)) < math.inf]
    ends = ends or [_end(log, axis) for log in counted]
    return min(ends) if ends and min(ends) > 0 else None


def error_at(log: RunLog, panel: Panel, where: float) -> float | None:
    """Return the error at a place of the panel's axis; None if it was not measured.

    Between evaluations near each other the error is interpolated, linearly on the figure's axes. It counts as not
    measured beyond the run's end, before the first evaluation after the start, and between evaluations that are `FAR`
    apart. An error that is not finite counts as the error of the start: nothing was learned.
    """
    placed = [record for record in log.evaluations if record.get(panel.axis) is not None]
    if not placed or where > reach(log, panel.axis):
        return None
    found = [panel.measure.of(record) for record in placed]
    x = np.array([record[panel.axis] for record in placed], float)
    if found[0] is None or not _measured(x, where):
        return None
    scale = panel.measure.scale
    y = scale.to([found[0] if value is None else value for value in found])
    later = x > 0
    if where <= 0 or not later.any():
        return float(scale.back(y[0]))
    return float(scale.back(np.interp(np.log(where), np.log(x[later]), y[later])))


def errors_at(logs: Iterable[RunLog], panel: Panel, where: float) -> list[float]:
    """Return the error of each run at a place, without the runs where it was not measured."""
    return [error for log in logs if (error := error_at(log, panel, where)) is not None]


def compiling(logs: Iterable[RunLog]) -> float:
    """Return the seconds that a method took to compile in the first of its seeds; later seeds need not compile.

    What a process compiled that resumed a training is left out: logs before natgrad 0.2 added it to the first's.
    """
    found = [0.0]
    for log in logs:
        first = log.resumed[0]["iteration"] if log.resumed else np.inf
        found += [float(each["compile_seconds"]) for each in log.evaluations if each["iteration"] <= first]
    return max(found)


def time_to(log: RunLog, error: float, measure: Measure) -> float | None:
    """Return the training seconds after which the error is first that low; None if it never is.

    The time is interpolated as the figure draws it. Between evaluations far apart, it is the time of the later one.
    """
    x, y = points(log, Panel(measure, CLOCK))
    below = np.flatnonzero(y <= error)
    if not len(below):
        return None
    k = int(below[0])
    if k == 0 or x[k] > FAR * x[k - 1]:
        return float(x[k])
    before, after, wanted = measure.scale.to([y[k - 1], y[k], error])
    return float(np.exp(np.interp(wanted, [after, before], np.log([x[k], x[k - 1]]))))


class Pairs(NamedTuple):
    """The runs of two methods from the same seeds, and their errors at the farthest place that all of them reached."""

    logs: list[tuple[RunLog, RunLog]]
    where: float | None
    """None if there is no such place."""
    differences: np.ndarray
    """The differences of the two methods' errors, on the scale of the panel, where both were measured."""


def pairs(runs: Runs, lower: str, upper: str, panel: Panel) -> Pairs:
    """Return two methods' complete runs, compared seed by seed."""
    one, other = ({log.seed: log for log in runs.method(name) if log.complete} for name in (lower, upper))
    logs = [(one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())]
    where = common((log for pair in logs for log in pair), panel.axis)
    found = [[error_at(log, panel, where) for log in pair] for pair in logs if where is not None]
    both = [panel.measure.scale.to(errors) for errors in found if None not in errors]
    return Pairs(logs, where, np.array([a - b for a, b in both], float))


def _end(log: RunLog, axis: str) -> float:
    return float(log.evaluations[-1].get(axis) or 0.0) if log.evaluations else 0.0


def _measured(x: np.ndarray, where: float) -> bool:
    """Whether a place is an evaluation, lies between two near each other, or lies beyond the last."""
    if (x == where).any() or where > x[-1]:
        return True
    before, after = x[x < where], x[x > where]
    return bool(len(before) and before[-1] > 0 and after[0] <= FAR * before[-1])
