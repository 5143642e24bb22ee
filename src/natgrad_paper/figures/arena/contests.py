"""The logs of a run, sorted by problem: who reached which error when, and who failed."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

import natgrad as ng
from natgrad_paper.figures.arena.entry import ERROR
from natgrad_paper.figures.arena.form import PLAIN
from natgrad_paper.report import curves, health
from natgrad_paper.report.load import Runs
from natgrad_paper.report.views import LINEAR, LOGARITHMIC, Measure
from natgrad_paper.training.log import RunLog, Status
from natgrad_paper.training.stopping import NONFINITE

NEVER = math.inf
LEAST = 1e-12
"""The number that replaces an error of 0, which has no place on a logarithmic axis."""
TOTAL = "total_seconds"
"""A field of an evaluation: its seconds of training plus the seconds that the method took to compile."""


@dataclass(frozen=True, eq=False)
class Contest:
    """A problem in one of its forms, and all trainings on it."""

    runs: Runs
    problem: str
    variant: str

    @cached_property
    def logs(self) -> dict[str, tuple[RunLog, ...]]:
        """The logs of each method that ran, one per seed."""
        here = self.problem, self.variant
        found = {
            name: tuple(_drawable(log) for log in self.runs.trainings(name) if _place(log) == here)
            for name in self.runs.methods
        }
        return {name: logs for name, logs in found.items() if logs}

    @cached_property
    def ended(self) -> dict[str, tuple[RunLog, ...]]:
        """The logs of trainings that came to their own end: only they are judged."""
        found = {name: tuple(log for log in logs if log.complete) for name, logs in self.logs.items()}
        return {name: logs for name, logs in found.items() if logs}

    def seeds(self, methods: Sequence[str]) -> set[int]:
        """Return the seeds from which all of these methods came to an end."""
        found = [{log.seed for log in self.ended.get(name, ())} for name in methods]
        return set.intersection(*found) if found else set()

    @property
    def facts(self) -> dict[str, Any]:
        """What the logs say about the problem."""
        first: dict[str, Any] = next(iter(self.logs.values()))[0].header["training"]
        return first

    @property
    def target(self) -> float | None:
        """The error to reach; None if none was measured."""
        found = self.facts.get("target")
        return float(found) if isinstance(found, int | float) else None

    @property
    def measure(self) -> Measure:
        """The training error, on the problem's scale."""
        return self._measure("", "training error")

    @property
    def test_measure(self) -> Measure:
        """The test error."""
        return self._measure("test_", "test error")

    def _measure(self, prefix: str, name: str) -> Measure:
        scale = LINEAR if self.facts.get("scale") == "linear" else LOGARITHMIC
        return Measure(prefix + ERROR, name, str(self.facts.get("error", ERROR)), scale)

    def times(self, method: str, compiling: bool = False) -> dict[int, float]:
        """Return the seconds to the target, seed by seed; infinity if it was not reached."""
        more = curves.compiling(self.logs[method]) if compiling else 0.0
        return {seed: time + more for seed, time in self.times_to(self.target, method, self.measure).items()}

    def times_to(self, error: float | None, method: str, measure: Measure) -> dict[int, float]:
        """Return the seconds of training to an error, seed by seed; infinity if it was not reached."""
        found = {}
        for log in self.ended.get(method, ()):
            time = None if error is None else curves.time_to(log, error, measure)
            found[log.seed] = NEVER if time is None else time
        return found

    def failures(self, method: str) -> list[str]:
        """Return why a method failed, once for each seed in which it did: NaN, or missed."""
        words = [
            "NaN" if diverged(log) else "missed" if self.target is not None and time == NEVER else ""
            for log, time in zip(self.ended.get(method, ()), self.times(method).values(), strict=True)
        ]
        return [each for each in words if each]

    def ends(self, method: str, measure: Measure) -> dict[int, float]:
        """Return an error at the end, seed by seed, without those that are NaN or infinite."""
        lasts = {log.seed: measure.of(log.evaluations[-1]) for log in self.ended.get(method, ())}
        return {seed: value for seed, value in lasts.items() if value is not None}

    def with_compiling(self, method: str) -> list[RunLog]:
        """Return a method's logs; their evaluations also have a time with compiling counted."""
        more = curves.compiling(self.logs[method])
        found = []
        for log in self.logs[method]:
            timed = ({**each, TOTAL: each["training_seconds"] + more} for each in log.evaluations)
            found.append(replace(log, evaluations=tuple(timed)))
        return found

    def ranks(self, methods: Sequence[str], seed: int) -> dict[str, float]:
        """Return the places of methods by their training error at the end; an error that is not a number comes last."""
        from scipy.stats import rankdata  # here, because it takes half a second to import

        errors = [self.ends(name, self.measure).get(seed, NEVER) for name in methods]
        return dict(zip(methods, map(float, rankdata(errors)), strict=True))


def void(logs: Iterable[RunLog], error: float, measure: Measure) -> str:
    """Return why trainings are no evidence up to an error; an empty text if they may be.

    What was given up or met NaN before has failed, and that is evidence.
    """
    counted = [until(log, error, measure) for log in logs]
    return health.cause(log for log in counted if log.status is not Status.GAVE_UP and not diverged(log))


def until(log: RunLog, error: float, measure: Measure) -> RunLog:
    """Return a log as if its budget ended with its first evaluation at such an error; all of it if there is none."""
    for count, each in enumerate(log.evaluations, start=1):
        if (found := measure.of(each)) is not None and found <= error:
            steps = tuple(step for step in log.steps if step["iteration"] <= each["iteration"])
            there = replace(log, evaluations=log.evaluations[:count], steps=steps)
            return replace(there, status=Status.FINISHED, reason="")
    return log


def _drawable(log: RunLog) -> RunLog:
    """Return a log whose errors all have a place on the axis of its problem."""
    if log.header["training"].get("scale") == "linear":
        return log
    names, found = (ERROR, f"test_{ERROR}"), []
    for each in log.evaluations:
        found.append({**each, **{name: LEAST for name in names if each.get(name) == 0}})
    return replace(log, evaluations=tuple(found))


def _place(log: RunLog) -> tuple[str, str]:
    facts = log.header["training"]
    return str(facts.get("problem", log.training)), str(facts.get("variant", PLAIN))


def contests(runs: Runs, variant: str = PLAIN) -> list[Contest]:
    """Return the problems of a run in one form, in the order in which they were set."""
    known = dict.fromkeys(_place(log) for log in runs.logs)
    order = {name: place for place, name in enumerate(runs.header["settings"].get("problems", ()))}
    found = [Contest(runs, *place) for place in known if place[1] == variant]
    return sorted(found, key=lambda each: order.get(each.problem, len(order)))


def diverged(log: RunLog) -> bool:
    """Whether a training met nothing but NaN or infinity at its end."""
    if log.status is Status.GAVE_UP and any(ng.Outcome.name_of(each) in log.reason for each in NONFINITE):
        return True
    last = log.evaluations[-1].get(ERROR) if log.evaluations else 0.0
    return last is None or not np.isfinite(last)
