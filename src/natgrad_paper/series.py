"""Curves out of logs: what the figure draws and the table counts, computed from the records alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from natgrad_paper.log import RunLog

ERROR = "squared_error"
AXES = ("iteration", "training_seconds")


@dataclass(frozen=True)
class Line:
    """A method's error along one axis: the geometric mean over seeds, with the least and the largest."""

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

    def line(self, axis: str) -> Line | None:
        """Return the error along an axis, over the stretch that every seed covers, if there is one."""
        tracks = [track for log in self.logs if len((track := points(log, axis))[0])]
        if not tracks:
            return None
        low = max(x[0] for x, _ in tracks)
        high = min(x[-1] for x, _ in tracks)
        x = np.unique(np.concatenate([x for x, _ in tracks]))
        x = x[(x >= low) & (x <= high)]
        if not len(x):
            return None
        # Straight lines between evaluations on the axes of the figure, which are logarithmic.
        logs = np.stack([np.interp(np.log(x), np.log(xs), np.log(ys)) for xs, ys in tracks])
        return Line(x, np.exp(logs.mean(axis=0)), np.exp(logs.min(axis=0)), np.exp(logs.max(axis=0)))

    def final(self) -> list[dict[str, Any]]:
        """Return each seed's last evaluation."""
        return [log.evaluations[-1] for log in self.logs if log.evaluations]

    def error_at(self, seconds: float) -> list[float]:
        """Return each seed's error after so much training time, interpolated between evaluations."""
        found = []
        for log in self.logs:
            x, y = points(log, "training_seconds")
            if len(x) and x[0] <= seconds:
                found.append(float(np.exp(np.interp(np.log(seconds), np.log(x), np.log(y)))))
        return found


def points(log: RunLog, axis: str, error: str = ERROR) -> tuple[np.ndarray, np.ndarray]:
    """Return a log's evaluations as (x, error), without those a logarithmic plot cannot hold."""
    pairs = [(record[axis], record.get(error)) for record in log.evaluations]
    kept = [(x, y) for x, y in pairs if x > 0 and y is not None and y > 0]
    return np.array([x for x, _ in kept], float), np.array([y for _, y in kept], float)


def by_method(logs: list[RunLog]) -> list[Runs]:
    """Return the logs grouped by method, in the order of the experiment's table of methods."""
    groups: dict[str, list[RunLog]] = {}
    for log in sorted(logs, key=lambda log: (log.header["method"]["order"], log.header["seed"])):
        groups.setdefault(log.header["method"]["name"], []).append(log)
    return [
        Runs(name, group[0].header["method"]["label"], group[0].header["method"]["color"], tuple(group))
        for name, group in groups.items()
    ]


def equal_time(runs: list[Runs]) -> float | None:
    """Return the longest training time that every run reached."""
    ends = [final["training_seconds"] for group in runs for final in group.final()]
    return min(ends) if ends and min(ends) > 0 else None
