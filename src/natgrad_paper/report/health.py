"""Whether a run can be evidence: not if steps were refused, λ was at its upper bound, or it never left the plateau.

λ at its lower bound is no ailment. It falls as long as steps keep their promises, to zero where a model fits all its
targets, and there it shortens steps least. Where it falls because the loss can resolve no change any more, the run is
given up.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import natgrad as ng
from natgrad_paper.report.curves import error_at
from natgrad_paper.report.views import Measure, Panel
from natgrad_paper.training.log import RunLog, Status
from natgrad_paper.training.stopping import ROUNDING

SHARE = 0.1
"""A run is no evidence if more than this share of its steps was refused, or had λ at its upper bound."""
LEFT = 0.9
"""A run has left the plateau when its error is below this share of the plateau's."""
VOID = (
    f"more than {SHARE:.0%} of the steps of a run were refused, or λ was at its upper bound in more than {SHARE:.0%} "
    "of its logged steps"
)
"""What makes a run no evidence, in words."""
LOWER = "λ at its lower bound is no fault: it falls there where steps keep their promises, and shortens them least."
"""What does not."""


def ailment(log: RunLog) -> str:
    """Return in words why a run is no evidence; an empty text if it may be."""
    if log.status is Status.GAVE_UP:
        return log.reason
    last: dict[str, Any] = log.evaluations[-1] if log.evaluations else {}
    refused, steps = last.get("refused") or 0, last.get("iteration") or 0
    if refused > SHARE * steps:
        return f"{refused} of {steps} steps refused"
    dampings = [value for step in log.steps or log.evaluations if (value := step.get("damping")) is not None]
    pinned = sum(value >= highest(log) * (1 - ROUNDING) for value in dampings)
    if pinned > SHARE * len(dampings):
        return f"λ at its upper bound in {pinned} of {len(dampings)} logged steps"
    return ""


def highest(log: RunLog) -> float:
    """Return the upper bound of a run's λ; the library's default if the log does not say."""
    match log.header.get("damping"):
        case {"bounds": [int() | float(), int() | float() as high]}:
            return float(high)
    return float(ng.LevenbergMarquardt.bounds[1])


def cause(logs: Iterable[RunLog]) -> str:
    """Return why a comparison of these runs is void; an empty text if it is not."""
    ailing = [(log, why) for log in logs if (why := ailment(log))]
    if not ailing:
        return ""
    (log, why), more = ailing[0], len(ailing) - 1
    rest = f"; {more} more run{'s' * (more > 1)} like it" if more else ""
    return f"{log.header['method']['label']}, seed {log.seed}: {why}{rest}"


def plateau(log: RunLog) -> tuple[str, float] | None:
    """Return the error of the best constant answer, and its name in evaluations; old logs do not state it."""
    stated = log.header.get("plateau")
    found = list(stated.items()) if isinstance(stated, dict) else []
    return next(
        ((name, level) for name, level in found if isinstance(level, int | float) and level > 0), None
    )


def relative(log: RunLog, axis: str, where: float) -> float | None:
    """Return a run's error at a place divided by that of the best constant answer, if the log states the latter."""
    if (found := plateau(log)) is None:
        return None
    error = error_at(log, Panel(Measure(found[0], found[0], found[0]), axis), where)
    return None if error is None else error / found[1]


def stayed(arms: Sequence[Sequence[RunLog]], axis: str, where: float) -> str:
    """Return in words that no method had left the plateau at a place, by its mean over seeds; empty if one had."""
    means = []
    for logs in arms:
        known = [share for log in logs if (share := relative(log, axis, where)) is not None]
        if not known:
            return ""
        means.append(float(np.exp(np.mean(np.log(known)))))
    if not means or min(means) < LEFT:
        return ""
    return f"nobody has left the plateau: the lowest error is {min(means):.2f} of the best constant answer’s"
