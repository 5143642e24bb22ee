"""Curves out of logs: what figures draw and tables count, computed from the records alone."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from natgrad_paper.log import EARLY, RunLog, dead, done
from natgrad_paper.measures import Measure, Panel

FAR = 2.0
"""Evaluations are far apart where the later is at more than so many times the place of the one before."""


@dataclass(frozen=True)
class Line:
    """A method's error along one axis: the mean over seeds, with the least and the largest."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Runs:
    """All seeds of one method."""

    name: str
    label: str
    color: str
    logs: tuple[RunLog, ...]

    def line(self, panel: Panel) -> Line | None:
        """Return the error along the panel's axis, over the stretch that every seed covers, if there is one.

        Runs cut short from outside are left out where there are complete ones; one that gave up keeps its error.
        """
        logs = [log for log in self.logs if complete(log)] or self.logs
        kept = [(log, track) for log in logs if len((track := points(log, panel.axis, panel.measure))[0])]
        tracks = [track for _, track in kept]
        if not tracks:
            return None
        low = max(x[0] for x, _ in tracks)
        high = min([x[-1] for log, (x, _) in kept if not gave_up(log)] or [x[-1] for x, _ in tracks])
        x = np.unique(np.concatenate([x for x, _ in tracks]))
        x = x[(x >= low) & (x <= high)]
        if not len(x):
            return None
        # Straight lines between evaluations on the axes of the figure.
        scale = panel.measure.scale
        ys = np.stack([np.interp(np.log(x), np.log(xs), scale.to(ys)) for xs, ys in tracks])
        return Line(x, *(scale.back(part) for part in (ys.mean(axis=0), ys.min(axis=0), ys.max(axis=0))))

    def final(self) -> list[dict[str, Any]]:
        """Return each seed's last evaluation."""
        return [log.evaluations[-1] for log in self.logs if log.evaluations]

    def error_at(self, where: float, panel: Panel) -> list[float]:
        """Return each seed's error there, without the seeds that did not come so far."""
        found = (error_at(log, panel, where) for log in self.logs)
        return [error for error in found if error is not None]

    def time_to(self, error: float, measure: Measure) -> list[float]:
        """Return the training seconds each seed took to reach an error, without those that never did."""
        found = (time_to(log, error, measure) for log in self.logs)
        return [seconds for seconds in found if seconds is not None]


def points(log: RunLog, axis: str, measure: Measure) -> tuple[np.ndarray, np.ndarray]:
    """Return a log's evaluations as (x, error), without those the figure cannot hold."""
    pairs = [(record[axis], measure.of(record)) for record in log.evaluations]
    kept = [(x, y) for x, y in pairs if x > 0 and y is not None]
    return np.array([x for x, _ in kept], float), np.array([y for _, y in kept], float)


def gave_up(log: RunLog) -> bool:
    """Whether the training itself went no further, unable to or out of patience; its error then stays what it was."""
    return dead(log.end) or (log.end or "").startswith(EARLY)


def complete(log: RunLog) -> bool:
    """Whether the run came to its own end: of its budget, or because it went no further."""
    return bool(log.evaluations) and (done(log.end) or gave_up(log))


def reach(log: RunLog, axis: str) -> float:
    """Return how far along an axis the run's error is known."""
    if not log.evaluations:
        return 0.0
    return math.inf if gave_up(log) else float(log.evaluations[-1][axis])


def error_at(log: RunLog, panel: Panel, where: float) -> float | None:
    """Return the error at a place of the panel's axis, None where it was not measured.

    Between evaluations near each other it is interpolated as the figure draws it, straight on the figure's axes. It
    was not measured beyond the run's end, before the first evaluation after the start, and between evaluations that
    are `FAR` apart. An error that is not finite counts as that of the start: nothing was learned.
    """
    if not log.evaluations or where > reach(log, panel.axis):
        return None
    found = [panel.measure.of(record) for record in log.evaluations]
    x = np.array([record[panel.axis] for record in log.evaluations], float)
    if found[0] is None or not _measured(x, where):
        return None
    scale = panel.measure.scale
    y = scale.to([found[0] if value is None else value for value in found])
    if where <= 0:
        return float(scale.back(y[0]))
    later = x > 0
    return float(scale.back(np.interp(np.log(where), np.log(x[later]), y[later])))


def _measured(x: np.ndarray, where: float) -> bool:
    """Whether a place is an evaluation, lies between two that are near each other, or beyond the last."""
    if (x == where).any() or where > x[-1]:
        return True
    before, after = x[x < where], x[x > where]
    return bool(len(before) and before[-1] > 0 and after[0] <= FAR * before[-1])


def time_to(log: RunLog, error: float, measure: Measure) -> float | None:
    """Return the training seconds after which the error is first that low, interpolated as it is drawn."""
    x, y = points(log, "training_seconds", measure)
    below = np.flatnonzero(y <= error)
    if not len(below):
        return None
    k = int(below[0])
    if k == 0:
        return float(x[0])
    before, after, wanted = measure.scale.to([y[k - 1], y[k], error])
    share = (before - wanted) / (before - after)
    return float(np.exp(np.log(x[k - 1]) + share * np.log(x[k] / x[k - 1])))


def by_method(logs: list[RunLog]) -> list[Runs]:
    """Return the logs grouped by method, in the order of the experiment's table of methods."""
    groups: dict[str, list[RunLog]] = {}
    for log in sorted(logs, key=lambda log: (log.header["method"]["order"], log.header["seed"])):
        groups.setdefault(log.header["method"]["name"], []).append(log)
    return [
        Runs(name, group[0].header["method"]["label"], group[0].header["method"]["color"], tuple(group))
        for name, group in groups.items()
    ]


def common(logs: Iterable[RunLog], axis: str) -> float | None:
    """Return the farthest point of an axis that every complete run reached; of any run where none is."""
    logs = [log for log in logs if log.evaluations]
    reached = [reach(log, axis) for log in [log for log in logs if complete(log)] or logs]
    # Where every run gave up: as far as the first of them came.
    ends = [end for end in reached if end < math.inf] or [log.evaluations[-1][axis] for log in logs]
    return float(min(ends)) if ends and min(ends) > 0 else None
