"""What the arena asks: is one default enough, wherever it is tried?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from natgrad_paper.figures.arena.contests import Contest, contests
from natgrad_paper.figures.arena.entry import ERROR
from natgrad_paper.figures.arena.form import PLAIN, VARIANTS
from natgrad_paper.figures.arena.methods import KNCG, RULER
from natgrad_paper.figures.arena.scores import Times, median, scores
from natgrad_paper.report.claims import INTERVAL, SEEDS, UNTIMED, Claim, Finding, Verdict, compare
from natgrad_paper.report.load import Runs
from natgrad_paper.report.views import CLOCK, LINEAR, Measure, Panel, Scale, View

TUNED = tuple(method.name for method in RULER)
OURS = "Not the paper’s claim, but a question of anyone who has many kinds of models."
POINTS = Scale("linear", 0.05)
"""Of scores."""
PLACES = 1.0
"""A method keeps its place if its mean place gets worse by less than this."""
NO_TARGET = "no target yet"
ALL = Measure(ERROR, "training error", "training error", LINEAR)
VIEW = View((Panel(ALL, CLOCK),), (), "Error against training time, problem by problem")
RULE = (
    ("time", "to the target: seconds of training until the training error is first that low."),
    (
        "target",
        "what tuned AdamW reaches in the budget, mean of three seeds from 100 on; fixed before these runs.",
    ),
    (
        "score",
        "the area below the profile, the share of problems that a method solves within τ times the fastest’s time, "
        "for τ from 1 to 4. A problem that nobody solves counts for nobody.",
    ),
    (
        "higher",
        f"compares the scores of two methods seed by seed. It holds if {INTERVAL} of the mean difference lies on one "
        f"side of zero, and the mean by at least {POINTS.smallest:g}.",
    ),
    ("failure", "a training whose steps met NaN or infinity to the end, or that missed the target."),
    (
        "refused steps",
        "are a method's own affair: they cost it time, and the score counts that. They make nothing void.",
    ),
    ("not decided", f"otherwise, with fewer than {SEEDS} seeds, and where there is no target."),
)


def with_target(found: Sequence[Contest]) -> list[Contest]:
    """Return the problems that have a target."""
    return [each for each in found if each.target is not None]


def classes(runs: Runs) -> tuple[list[str], list[str]]:
    """Return the methods without a pilot, and all methods."""
    return [name for name in runs.methods if name not in TUNED], list(runs.methods)


def everywhere(found: Sequence[Contest], methods: Sequence[str]) -> list[str]:
    """Return the methods that came to an end on all the problems."""
    return [name for name in methods if all(name in each.ended for each in found)]


def middles(found: Sequence[Contest], methods: Sequence[str], compiling: bool) -> Times:
    """Return the times to the targets, medians over seeds."""
    return {
        each.problem: {name: median(list(each.times(name, compiling).values())) for name in methods}
        for each in found
    }


def of_seed(found: Sequence[Contest], methods: Sequence[str], seed: int) -> dict[str, float]:
    """Return the scores of a single seed."""
    times = {each.problem: {name: each.times(name)[seed] for name in methods} for each in found}
    return scores(times, methods)


@dataclass(frozen=True)
class Highest:
    """The test that a method's score is above that of every other without a pilot."""

    method: str

    def __call__(self, runs: Runs) -> list[Finding]:
        if not runs.timed:
            return [Finding(UNTIMED, Verdict.ABSENT)]
        found = contests(runs)
        methods = everywhere(found, classes(runs)[0])
        if self.method not in methods or len(methods) < 2:
            return [Finding(f"no runs of {self.method} and another on all problems", Verdict.ABSENT)]
        targets = with_target(found)
        if not targets:
            return [Finding(NO_TARGET, Verdict.OPEN)]
        seeds = sorted(set.intersection(*(each.seeds(methods) for each in targets)))
        each = [of_seed(targets, methods, seed) for seed in seeds]
        return [self._against(rival, each, runs) for rival in methods if rival != self.method]

    def _against(self, rival: str, each: list[dict[str, float]], runs: Runs) -> Finding:
        words = f"score, {runs.label(rival)} − {runs.label(self.method)}"
        differences = np.array([own[rival] - own[self.method] for own in each])
        return compare(words, differences, POINTS)


@dataclass(frozen=True)
class FailsNowhere:
    """The test that every training of a method reaches its target."""

    method: str

    def __call__(self, runs: Runs) -> list[Finding]:
        found = [each for each in contests(runs) if self.method in each.ended]
        if not found:
            return [Finding(f"no runs of {self.method}", Verdict.ABSENT)]
        return [self._on(each) for each in found]

    def _on(self, contest: Contest) -> Finding:
        failures, total = contest.failures(self.method), len(contest.ended[self.method])
        words = f"{contest.problem}: {len(failures)} of {total} trainings failed"
        if failures:
            kinds = ", ".join(f"{failures.count(kind)} {kind}" for kind in dict.fromkeys(failures))
            return Finding(f"{words} ({kinds})", Verdict.FAILS)
        if contest.target is None:
            return Finding(f"{words}; {NO_TARGET}", Verdict.OPEN)
        return Finding(words, Verdict.HOLDS if total >= SEEDS else Verdict.OPEN)


@dataclass(frozen=True)
class KeepsPlace:
    """The test that a method's mean place among those without a pilot falls by less than one, whatever is changed."""

    method: str

    def __call__(self, runs: Runs) -> list[Finding]:
        findings = []
        for variant in VARIANTS:
            moved = shifts(runs, self.method, variant)
            if variant != PLAIN and len(moved):
                words = f"{VARIANTS[variant]}: mean place {np.mean(moved):+.2f}".replace("-", "−")
                verdict = Verdict.HOLDS if np.mean(moved) < PLACES else Verdict.FAILS
                if len(moved) < SEEDS:
                    words, verdict = f"{words} ({len(moved)} seeds, too few)", Verdict.OPEN
                findings.append(Finding(words, verdict))
        return findings or [Finding("no runs with anything changed", Verdict.ABSENT)]


def shifts(runs: Runs, method: str, variant: str) -> np.ndarray:
    """Return how much a method's mean place changes in a variant, seed by seed, over problems that have both forms."""
    usual = {each.problem: each for each in contests(runs)}
    both = [(usual[each.problem], each) for each in contests(runs, variant) if each.problem in usual]
    methods = everywhere([each for pair in both for each in pair], classes(runs)[0])
    if not both or method not in methods:
        return np.empty(0)
    seeds = set.intersection(*(each.seeds(methods) for pair in both for each in pair))
    moved = [
        np.mean([two.ranks(methods, seed)[method] - one.ranks(methods, seed)[method] for one, two in both])
        for seed in sorted(seeds)
    ]
    return np.array(moved)


CLAIMS = (
    Claim("a", "With nothing chosen, KNCG has the highest score.",
          "Its score above that of every other method without a pilot.", (Highest(KNCG.name),), OURS),
    Claim("b", "KNCG fails on no problem.", "Every training reaches what tuned AdamW reaches.",
          (FailsNowhere(KNCG.name),), OURS),
    Claim("c", "KNCG keeps its place when units, batch or precision change.",
          f"Its mean place by training error falls by less than {PLACES:g}.", (KeepsPlace(KNCG.name),), OURS),
)  # fmt: skip
