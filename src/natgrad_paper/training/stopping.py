"""Why a training ends before its budget: steps achieve nothing, validation gets no better, or a signal arrives."""

import math
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import natgrad as ng

NONFINITE = (ng.Outcome.NONFINITE_GRADIENT, ng.Outcome.NONFINITE_METRIC, ng.Outcome.NONFINITE_LOSS)
IDLE = (
    *NONFINITE, ng.Outcome.NO_DECREASE, ng.Outcome.NO_DIRECTION, ng.Outcome.REJECTED, ng.Outcome.UNMEASURABLE,
)  # fmt: skip
"""A step with one of these outcomes was refused, or changed the loss by less than the loss can resolve."""
LIMIT = 10
"""A training ends after this many steps in a row that meet a NaN or an infinity."""
PATIENCE = 50
"""A training ends after this many idle steps in a row, or as many with λ at its upper bound."""
ROUNDING = 1e-6
"""λ counts as at its bound within this share of it: a step computes λ in its own precision."""
ROW = "steps in a row"


@dataclass(frozen=True)
class Streaks:
    """How many of the last steps in a row achieved nothing, by kind."""

    nonfinite: int = 0
    """Steps refused for a NaN or an infinity."""
    idle: int = 0
    """Steps refused for any cause, or too small to be measured."""
    unmeasurable: int = 0
    """Of the idle ones, those too small to be measured."""
    at_bound: int = 0
    """Steps, taken or not, with λ at its upper bound."""

    def after(self, step: Mapping[str, Any], highest: float | None = None) -> "Streaks":
        """Return the streaks after one more step.

        Args:
            step: Its `outcome`, an `ng.Outcome`, and its `damping`, if the method reports them.
            highest: The upper bound of λ, if there is one.
        """
        outcome, damping = step.get("outcome"), step.get("damping")
        idle = outcome in IDLE
        bound = highest is not None and damping is not None and damping >= highest * (1 - ROUNDING)
        return Streaks(
            self.nonfinite + 1 if outcome in NONFINITE else 0,
            self.idle + 1 if idle else 0,
            self.unmeasurable + (outcome == ng.Outcome.UNMEASURABLE) if idle else 0,
            self.at_bound + 1 if bound else 0,
        )

    def given_up(self, outcome: int | None, highest: float | None = None) -> str:
        """Return why to give up after a step with this outcome; an empty text means to continue."""
        if self.nonfinite >= LIMIT and outcome is not None:
            return f"{self.nonfinite} {ROW} refused: {ng.Outcome.name_of(outcome)}"
        if self.idle >= PATIENCE and outcome is not None:
            if self.unmeasurable == self.idle:
                return f"{self.idle} {ROW} changed the loss by less than it can resolve: converged, or stuck"
            if not self.unmeasurable:
                return f"{self.idle} {ROW} refused: {ng.Outcome.name_of(outcome)}"
            return f"{self.idle} {ROW} refused or too small to measure, {self.unmeasurable} of them too small"
        if self.at_bound >= PATIENCE:
            return f"{self.at_bound} {ROW} with λ at its upper bound, {highest:g}"
        return ""


def follow(
    streaks: Streaks, steps: Iterable[Mapping[str, Any]], highest: float | None = None
) -> tuple[Streaks, str]:
    """Return the streaks after some steps, and why to give up; an empty text means to continue.

    A streak counts at its longest, even if a later step of the same call ended it.
    """
    reason = ""
    for step in steps:
        streaks = streaks.after(step, highest)
        reason = streaks.given_up(step.get("outcome"), highest) or reason
    return streaks, reason


def damping_rule(optimizer: Any) -> ng.LevenbergMarquardt | None:
    """Return the rule that moves an optimizer's λ, if it has one."""
    inner = optimizer.optimizer if isinstance(optimizer, ng.Averaged) else optimizer
    rule = getattr(inner, "damping", None)
    return rule if isinstance(rule, ng.LevenbergMarquardt) else None


def highest_damping(optimizer: Any) -> float | None:
    """Return the upper bound of an optimizer's λ; None if no rule moves λ."""
    rule = damping_rule(optimizer)
    # Equal bounds hold λ fixed on purpose.
    return None if rule is None or np.equal(*rule.bounds) else float(rule.bounds[1])


@dataclass(frozen=True)
class Patience:
    """How long a training has been without a lower validation error."""

    allowed: int | None
    """Evaluations in a row; None for a training that is not stopped early."""
    lowest: float | None = None
    """The lowest validation error so far, once there is a finite one."""
    waited: int = 0
    """Evaluations since then."""

    def after(self, errors: dict[str, float]) -> "Patience":
        """Return the patience after an evaluation: the first of the validation errors counts."""
        if self.allowed is None:
            return self
        error = next(value for name, value in errors.items() if name.startswith("valid_"))
        if math.isfinite(error) and (self.lowest is None or error < self.lowest):
            return Patience(self.allowed, error, 0)
        return Patience(self.allowed, self.lowest, self.waited + 1)

    @property
    def ended(self) -> str:
        """Why training ends here; an empty text means to continue."""
        if self.allowed is None or self.waited < self.allowed:
            return ""
        return f"no lower validation error in {self.waited} evaluations"


class Stopped(Exception):
    """A run was asked to stop and has stopped; its logs and checkpoints are complete."""

    def __init__(self, by: signal.Signals, directory: Path) -> None:
        super().__init__(by, directory)
        self.by = by
        self.directory = directory

    @property
    def exit_code(self) -> int:
        """The code shells use for an end by this signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.by


class Signals:
    """Records the first signal to stop, which the run checks between steps; a second signal stops it at once.

    A closed terminal (SIGHUP) is a signal to stop as well.
    """

    NAMES = ("SIGINT", "SIGTERM", "SIGHUP")

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Signals":
        try:
            for number in (signal.Signals[name] for name in self.NAMES if hasattr(signal, name)):
                # If the user arranged (nohup) to ignore a closed terminal, it stays ignored.
                if number.name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        except ValueError:  # This is not the main thread, which alone can handle signals.
            pass
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        if self.asked is not None:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number)
