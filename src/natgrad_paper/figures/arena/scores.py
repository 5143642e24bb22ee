"""The score of AlgoPerf (Dahl et al. 2023): how often a method solves a problem within τ times the fastest's time.

    profile(τ) = share of problems with time ≤ τ · the fastest's time,    score = 1/3 · ∫ profile(τ) dτ from 1 to 4

If a method takes r times the fastest's time on a problem, it gains max(0, 4 − r) / 3 divided by the number of problems.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

Times = Mapping[str, Mapping[str, float]]
"""Seconds to the target by problem, then by method; infinity if it was never reached."""
MOST = 4.0
"""The largest τ."""


def slowdowns(times: Times, methods: Sequence[str]) -> dict[str, list[float]]:
    """Return each method's time over the fastest's, problem by problem; infinity if it never reached the target."""
    fastest = {problem: min(found[name] for name in methods) for problem, found in times.items()}
    return {
        name: [
            found[name] / fastest[problem] if math.isfinite(found[name]) else math.inf
            for problem, found in times.items()
        ]
        for name in methods
    }


def profile(found: Sequence[float], tau: float) -> float:
    """Return the share of problems that are solved within τ times the fastest's time."""
    return sum(ratio <= tau for ratio in found) / len(found)


def score(found: Sequence[float]) -> float:
    """Return the area below the profile, 1 for a method that is the fastest everywhere."""
    return sum(max(0.0, MOST - ratio) / (MOST - 1) for ratio in found) / len(found)


def scores(times: Times, methods: Sequence[str]) -> dict[str, float]:
    """Return every method's score; an empty dict if there is no problem."""
    return {name: score(each) for name, each in slowdowns(times, methods).items()} if times else {}


def median(times: Sequence[float]) -> float:
    """Return the median time of several seeds; infinity if half of them never reached the target."""
    return float(np.median(times))
