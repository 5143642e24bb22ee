"""When a training is given up: nothing has come of its steps for so long that nothing will."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import natgrad as ng
from natgrad_paper.log import DEAD

NONFINITE = (ng.Outcome.NONFINITE_GRADIENT, ng.Outcome.NONFINITE_METRIC, ng.Outcome.NONFINITE_LOSS)
IDLE = (
    *NONFINITE,
    ng.Outcome.NO_DECREASE,
    ng.Outcome.NO_DIRECTION,
    ng.Outcome.REJECTED,
    ng.Outcome.UNMEASURABLE,
)
"""A step that ends so was refused, or changed the loss by less than the loss can resolve."""
LIMIT = 10
"""So many steps in a row that meet a NaN or an infinity end a training."""
PATIENCE = 50
"""So many idle steps in a row end a training, and so many with λ at its upper bound."""
ROUNDING = 1e-6
"""λ is at its bound within so much of it: a step computes it in its own precision."""


@dataclass(frozen=True)
class Streaks:
    """How many of the last steps, in a row, were of a kind that leads nowhere."""

    nonfinite: int = 0
    """Refused for a NaN or an infinity."""
    idle: int = 0
    """Refused for whatever cause, or too small to be measured."""
    unmeasurable: int = 0
    """Of the idle ones, those too small to be measured."""
    at_bound: int = 0
    """Taken or not, with λ at its upper bound."""

    def after(self, step: Mapping[str, Any], highest: float | None = None) -> "Streaks":
        """Return the streaks after one more step.

        Args:
            step: Its `outcome` as `ng.Outcome` has it and its `damping`, where the method tells them.
            highest: The upper bound of λ, where it has one.
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
        """Return why to give up after a step with this outcome; nothing, to go on."""
        if self.nonfinite >= LIMIT and outcome is not None:
            return f"{self.nonfinite} {DEAD} refused: {ng.Outcome.name_of(outcome)}"
        if self.idle >= PATIENCE and outcome is not None:
            return self._idle_words(ng.Outcome.name_of(outcome))
        if self.at_bound >= PATIENCE:
            return f"{self.at_bound} {DEAD} with λ at its upper bound, {highest:g}"
        return ""

    def _idle_words(self, last: str) -> str:
        if self.unmeasurable == self.idle:
            return f"{self.idle} {DEAD} changed the loss by less than it can resolve: converged, or stuck"
        if not self.unmeasurable:
            return f"{self.idle} {DEAD} refused: {last}"
        return f"{self.idle} {DEAD} refused or too small to measure, {self.unmeasurable} of them the latter"


def follow(
    streaks: Streaks, steps: Iterable[Mapping[str, Any]], highest: float | None = None
) -> tuple[Streaks, str]:
    """Return the streaks after some steps, and why to give up; nothing, to go on.

    A streak that a later step of the same call ended counts all the same, at its longest.
    """
    reason = ""
    for step in steps:
        streaks = streaks.after(step, highest)
        reason = streaks.given_up(step.get("outcome"), highest) or reason
    return streaks, reason


def rule_of(optimizer: Any) -> ng.LevenbergMarquardt | None:
    """Return the rule that moves an optimizer's λ, where it has one."""
    inner = optimizer.optimizer if isinstance(optimizer, ng.Averaged) else optimizer
    rule = getattr(inner, "damping", None)
    return rule if isinstance(rule, ng.LevenbergMarquardt) else None


def highest(optimizer: Any) -> float | None:
    """Return the upper bound of an optimizer's λ; None where no rule moves it."""
    rule = rule_of(optimizer)
    # Bounds that meet hold λ where it is on purpose.
    return None if rule is None or np.equal(*rule.bounds) else float(rule.bounds[1])
