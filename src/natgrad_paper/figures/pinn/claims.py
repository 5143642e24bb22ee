"""The claims: a number of digits in a number of seconds on every equation, from every seed."""

import math
from dataclasses import dataclass

import numpy as np

from natgrad_paper.figures.arena.contests import Contest, contests, diverged, void
from natgrad_paper.figures.arena.entry import ERROR
from natgrad_paper.figures.pinn.methods import OURS
from natgrad_paper.report import health
from natgrad_paper.report.claims import SEEDS, UNTIMED, Claim, Finding, Verdict
from natgrad_paper.report.load import Runs
from natgrad_paper.report.views import CLOCK, Measure, Panel, View

GOALS: dict[str, tuple[tuple[float, float], ...]] = {
    "p1": ((1e-5, 20.0), (1e-7, 200.0)),
    "p2": ((1e-6, 60.0),),
    "p3": ((1e-6, 120.0),),
    "p4": ((1e-5, 90.0),),
    "p6": ((1e-5, 100.0),),
    "p7a": ((1e-5, 120.0),),
    "p7b": ((1e-5, 120.0),),
    "p5": ((1e-4, 300.0),),
}
"""Errors, and the seconds in which the median seed should reach them on two cores. The last is a stretch."""
STUCK = 0.05
"""A run is stuck if its final error is larger than this: it has not found the solution's shape."""
MEASURE = Measure(ERROR, "error", "relative L2 error")
VIEW = View((Panel(MEASURE, CLOCK),), (), "Error against seconds of training, equation by equation")
RULE = (
    ("time", "seconds of training until the error is first that low, without compiling and evaluating."),
    ("in time", f"holds if the median over at least {SEEDS} seeds is no longer than the goal. A seed that never "
     "arrives counts as infinitely late."),
    ("stuck", f"is a training whose error is above {STUCK:g} at its end, or that met NaN or infinity to the end."),
    ("void", f"if, up to the error in question, {health.VOID}; but a training that is stuck counts. {health.LOWER}"),
    ("not decided", f"with fewer than {SEEDS} seeds."),
)  # fmt: skip


@dataclass(frozen=True)
class InTime:
    """The test that the median seed of a method reaches the goals of an equation in time."""

    problem: str
    method: str = OURS

    def __call__(self, runs: Runs) -> list[Finding]:
        contest = next((each for each in contests(runs) if each.problem == self.problem), None)
        if not runs.timed:
            return [Finding(UNTIMED, Verdict.ABSENT)]
        if contest is None or self.method not in contest.ended:
            return [Finding(f"{self.problem}: no runs of {self.method}", Verdict.ABSENT)]
        return [self._to(contest, *goal) for goal in GOALS[self.problem]]

    def _to(self, contest: Contest, error: float, seconds: float) -> Finding:
        found = list(contest.times_to(error, self.method, MEASURE).values())
        middle, reached = float(np.median(found)), sum(map(math.isfinite, found))
        ends = contest.ends(self.method, MEASURE)
        end = np.median([ends.get(log.seed, math.inf) for log in contest.ended[self.method]])
        late = f"not on the median seed, which ends at {end:.2g}"
        shown = f"after {middle:.3g} s" if math.isfinite(middle) else late
        share = f"{reached} of {len(found)} seeds reach it"
        words = f"{self.problem}: {error:g} {shown}, goal {seconds:g} s; {share}"
        if why := void(contest.ended[self.method], error, MEASURE):
            return Finding(f"{words}; void: {why}", Verdict.VOID)
        if len(found) < SEEDS:
            return Finding(f"{words} (too few)", Verdict.OPEN)
        budget = contest.runs.header["settings"].get("budget", {}).get("seconds")
        if math.isinf(middle) and budget is not None and budget < seconds:
            return Finding(f"{words} (the runs have {budget:g} s)", Verdict.OPEN)
        return Finding(words, Verdict.HOLDS if middle <= seconds else Verdict.FAILS)


@dataclass(frozen=True)
class NoneStuck:
    """The test that every training of a method finds the solution."""

    method: str = OURS

    def __call__(self, runs: Runs) -> list[Finding]:
        found = [each for each in contests(runs) if self.method in each.ended]
        return [self._on(each) for each in found] or [Finding(f"no runs of {self.method}", Verdict.ABSENT)]

    def _on(self, contest: Contest) -> Finding:
        logs = contest.ended[self.method]
        ends = contest.ends(self.method, MEASURE)
        stuck = sum(diverged(log) or not ends.get(log.seed, math.inf) <= STUCK for log in logs)
        words = f"{contest.problem}: {stuck} of {len(logs)} trainings stuck"
        if stuck:
            return Finding(words, Verdict.FAILS)
        if why := void(logs, STUCK, MEASURE):
            return Finding(f"{words}; void: {why}", Verdict.VOID)
        return Finding(words, Verdict.HOLDS if len(logs) >= SEEDS else Verdict.OPEN)


def goals(problem: str) -> str:
    """Return the goals of an equation in words."""
    return ", ".join(f"{error:g} in {seconds:g} s" for error, seconds in GOALS[problem])


SAID = "Not the paper’s claim, but what natural gradient is used for today."
NONE_STUCK = Claim(
    "h",
    "No seed is stuck.",
    f"The error at the end of every training at most {STUCK:g}.",
    (NoneStuck(),),
    SAID,
)
IN_TIME = tuple(
    Claim(key, f"{name.upper()} is solved in time: {goals(name)}.", "The median time to each goal.",
          (InTime(name),), SAID)
    for key, name in zip("abcdefgi", GOALS, strict=True)
)  # fmt: skip
CLAIMS = tuple(sorted((*IN_TIME, NONE_STUCK), key=lambda claim: claim.key))
