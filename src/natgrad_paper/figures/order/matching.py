"""Rates at which two methods end with the same validation error: the one that learns more is slowed down.

With a smaller rate any method moves less, so its outputs vary less; the validation error measures how far it moved. A
method can always be slowed down enough: with a rate of 0 it learns nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Tried:
    """A rate, and the validation error reached with it."""

    rate: float
    error: float


def slow_down(
    start: Tried, target: float, train: Callable[[float], Tried], tolerance: float, trainings: int
) -> Tried:
    """Return the trial nearest to a target above the start's error, after at most `trainings` further ones.

    The rate falls by factors of four until the error is above the target. Then the bracket is cut where a straight
    line between its ends, error against the logarithm of the rate, meets the target.
    """
    trials, fast, slow = [start], start, None
    while abs(closest(trials, target).error - target) > tolerance and len(trials) <= trainings:
        rate = rounded(fast.rate / 4 if slow is None else between(fast, slow, target))
        trial = train(rate)
        trials.append(trial)
        if trial.error > target:
            slow = trial
        else:
            fast = trial
    return closest(trials, target)


def closest(trials: list[Tried], target: float) -> Tried:
    """Return the trial whose error is nearest to the target; of several, the one with the largest rate."""
    return min(trials, key=lambda trial: (abs(trial.error - target), -trial.rate))


def between(fast: Tried, slow: Tried, target: float) -> float:
    """Return a rate inside a bracket, at least a tenth of it away from its ends."""
    share = (target - fast.error) / (slow.error - fast.error) if slow.error > fast.error else 0.5
    share = min(max(share, 0.1), 0.9)
    return math.exp((1 - share) * math.log(fast.rate) + share * math.log(slow.rate))


def rounded(rate: float) -> float:
    """Return a rate to five digits: exact in a log, so that a resumed search takes the same path."""
    return float(f"{rate:.5g}")
