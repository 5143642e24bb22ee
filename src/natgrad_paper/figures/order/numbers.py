"""What the logs of figure 2 say of a method and a seed: variances, rates tried, errors reached."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from natgrad_paper.figures.order.protocol import UNPERTURBED
from natgrad_paper.report.load import Runs
from natgrad_paper.training.log import RunLog

ERROR = "valid_misclassified"


@dataclass(frozen=True)
class Measured:
    """All trainings of a method and a seed, and the log of what was measured of several of them together."""

    log: RunLog
    trainings: tuple[RunLog, ...]

    @property
    def whole(self) -> bool:
        """Whether nothing is missing."""
        return self.log.done

    @property
    def settings(self) -> dict[str, Any]:
        """Those of the log."""
        found: dict[str, Any] = self.log.header["settings"]
        return found

    def measures(self, kind: str) -> list[dict[str, Any]]:
        """Return the measures of a kind, in their order."""
        return [record for record in self.log.measures if record.get("kind") == kind]

    def of_kind(self, kind: str) -> list[RunLog]:
        """Return the finished trainings of a kind, in the order of their names."""
        return [log for log in self.trainings if log.done and log.header["training"].get("kind") == kind]

    def curve(self, field: str = "variance") -> np.ndarray:
        """Return the variance against the segment that was replaced, as far as it was measured."""
        found = {record["segment"]: record[field] for record in self.measures("segment")}
        return np.array([found[segment] for segment in sorted(found)], float)

    def limit(self) -> list[tuple[float, float]]:
        """Return (factor of the rate, variance) with one segment replaced, the whole rate first."""
        slower = sorted(self.measures("limit"), key=lambda record: -record["factor"])
        if not slower or not len(found := self.curve()):
            return []
        whole = float(found[slower[0]["segment"] - 1])
        return [(1.0, whole), *((record["factor"], record["variance"]) for record in slower)]

    def trials(self) -> list[tuple[float, float]]:
        """Return the (rate, validation error) that were tried, from the fastest to the slowest."""
        found = [(log.header["training"]["rate"], _error(log)) for log in self.of_kind("match")]
        return sorted(found, reverse=True)

    def matched(self) -> dict[str, Any]:
        """Return the measure of the matched rate: `rate`, and `reached`, whether the errors are equal."""
        return next((record for record in self.log.measures if record["name"] == "matched"), {})

    def errors(self, kind: str) -> list[float]:
        """Return the validation errors of all trainings of a kind."""
        return [_error(log) for log in self.of_kind(kind)]

    def trace(self, training: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (updates, validation error) along a training."""
        logs = [log for log in self.trainings if log.training == training]
        found = [(record["iteration"], record[ERROR]) for log in logs for record in log.evaluations]
        return np.array([x for x, _ in found], float), np.array([y for _, y in found], float)

    def spent(self) -> dict[str, float]:
        """Return updates made and refused, and seconds of training; what several trainings share counts once."""
        ends = [log.evaluations[-1] for log in self.trainings if log.evaluations]
        segment = self.settings["stream"]["segment"]
        skipped = sum((log.header["training"]["segment"] - 1) * segment for log in self.of_kind("segment"))
        return {
            "updates": sum(end["iteration"] for end in ends) - skipped,
            "refused": sum(end["refused"] for end in ends),
            "training": sum(end["training_seconds"] for end in ends),
        }


def measured(runs: Runs, method: str) -> Iterator[Measured]:
    """Yield what there is of a method, seed by seed."""
    for log in runs.method(method):
        named = (each for each in runs.trainings(method, log.seed) if each.training)
        yield Measured(log, tuple(named))


def unperturbed_error(found: Measured) -> float | None:
    """Return the validation error of the unperturbed training at the matched rate."""
    return next(iter(found.errors(UNPERTURBED)), None)


def _error(log: RunLog) -> float:
    return float(log.evaluations[-1][ERROR])
