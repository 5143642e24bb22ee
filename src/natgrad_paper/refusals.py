"""When a training is given up: too many steps, one after another, refused for a NaN or an infinity."""

from collections.abc import Iterable

import natgrad as ng

NONFINITE = (ng.Outcome.NONFINITE_GRADIENT, ng.Outcome.NONFINITE_METRIC, ng.Outcome.NONFINITE_LOSS)
LIMIT = 10
"""So many in a row end a training: nothing will come of it."""


def follow(in_a_row: int, outcomes: Iterable[int | None]) -> tuple[int, str]:
    """Return how many of the last steps in a row were refused, and why to give up; nothing, to go on.

    Args:
        in_a_row: How many were refused just before.
        outcomes: What became of the steps since then, as `ng.Outcome` has it; None of a method that does not tell.
    """
    longest, met = 0, 0
    for outcome in outcomes:
        in_a_row = 0 if outcome is None or outcome not in NONFINITE else in_a_row + 1
        if outcome is not None and in_a_row > longest:
            longest, met = in_a_row, outcome
    return in_a_row, _sentence(longest, met) if longest >= LIMIT else ""


def _sentence(steps: int, outcome: int) -> str:
    return f"{steps} steps in a row refused: {ng.Outcome.name_of(outcome)}"
