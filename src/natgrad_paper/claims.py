"""Claims, judged from logs: what is claimed, by which rule it is judged, and what was measured.

Most claims are orderings, and all orderings are judged by one `rule`. A claim holds when all its
findings hold, does not hold when one of them does not, and is otherwise not decided.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from natgrad_paper.log import RunLog, done
from natgrad_paper.measures import LOGARITHMIC, RECONSTRUCTION, Measure, Panel, Scale, View
from natgrad_paper.series import Runs, common, complete, error_at

SEEDS, ERRORS = 3, 2.0
"""An ordering is judged from so many seeds on, and has to exceed so many standard errors."""

PLACES = {
    "training_seconds": "at equal training time (the shortest that runs of either have)",
    "iteration": "at equal iterations (the most that all of them reached)",
}
COMPARED = {"log": "log(error of A / error of B)", "linear": "error of A − error of B"}


def rule(view: View) -> tuple[tuple[str, str], ...]:
    """Return the rule in words, for the page: terms and what they mean."""
    places = " and ".join(words for axis, words in PLACES.items() if axis in view.axes)
    scales = {
        name: [panel.measure.name for panel in view.panels if panel.measure.scale.name == name]
        for name in dict.fromkeys(panel.measure.scale.name for panel in view.panels)
    }
    compared = " or ".join(
        COMPARED[name] + f" ({', '.join(dict.fromkeys(names))})" * (len(scales) > 1)
        for name, names in scales.items()
    )
    return (
        (
            "A below B",
            f"compares the errors of the two methods’ runs from the same seed, {places}, interpolated between "
            "evaluations as the figure draws them.",
        ),
        (
            "holds",
            f"if the mean over seeds of {compared} is below zero by more than {ERRORS:g} standard errors.",
        ),
        ("does not hold", "if that mean is above zero by more than so much."),
        ("not decided", f"in between, and with fewer than {SEEDS} seeds."),
        ("a claim", "holds if all its comparisons hold, and does not hold if one of them does not."),
        (
            "which runs",
            "A run whose steps stopped being finite keeps its last error; an error that is not finite counts as that "
            "of the untrained network; runs cut short from outside are left out.",
        ),
        (
            "how sure",
            # Student's t with 2 and 4 degrees of freedom, beyond 2: 0.092 and 0.058.
            "Were there no difference, a single comparison would still come out as “holds” in about 9 of 100 cases "
            "with 3 seeds, and in 6 of 100 with 5.",
        ),
    )


class Verdict(StrEnum):
    """What the logs say about a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "not decided"


@dataclass(frozen=True)
class Finding:
    """One thing measured for a claim, in words, and what follows from it."""

    words: str
    verdict: Verdict


Methods = Mapping[str, Runs]
Test = Callable[[Methods], list[Finding]]


@dataclass(frozen=True)
class Claim:
    """A claim and the tests that decide it."""

    key: str
    words: str
    rule: str
    """What is compared, in words."""
    tests: tuple[Test, ...]
    source: str = ""
    """A sentence on who claims it, where it is not the paper."""


@dataclass(frozen=True)
class Judged:
    """A claim with what was found."""

    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """What the findings say together."""
        return together(finding.verdict for finding in self.findings)


def judge(claims: Iterable[Claim], runs: Sequence[Runs]) -> list[Judged]:
    """Return every claim with its findings in the runs."""
    methods = {group.name: group for group in runs}
    return [
        Judged(claim, tuple(finding for test in claim.tests for finding in test(methods))) for claim in claims
    ]


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on a conjunction: of nothing at all, not decided."""
    found = set(verdicts)
    if Verdict.FAILS in found:
        return Verdict.FAILS
    return Verdict.HOLDS if found == {Verdict.HOLDS} else Verdict.OPEN


@dataclass(frozen=True)
class Below:
    """The test that one method's error is below another's, in each of the panels."""

    lower: str
    upper: str
    panels: tuple[Panel, ...] = RECONSTRUCTION.panels

    def __call__(self, methods: Methods) -> list[Finding]:
        if absent := [name for name in (self.lower, self.upper) if name not in methods]:
            return [Finding(f"no runs of {' or '.join(absent)}", Verdict.OPEN)]
        return [self._along(panel, methods[self.lower], methods[self.upper]) for panel in self.panels]

    def _along(self, panel: Panel, lower: Runs, upper: Runs) -> Finding:
        axis, scale = panel.axis, panel.measure.scale
        names = panel.words(lower.label, upper.label)
        logs = [{log.header["seed"]: log for log in runs.logs if complete(log)} for runs in (lower, upper)]
        pairs = [(logs[0][seed], logs[1][seed]) for seed in sorted(logs[0].keys() & logs[1].keys())]
        where = common((log for pair in pairs for log in pair), axis)
        if where is None:
            return Finding(f"{names}: no seed with whole runs of both", Verdict.OPEN)
        errors = [tuple(error_at(log, panel, where) for log in pair) for pair in pairs]
        both = np.array([pair for pair in errors if None not in pair], float).reshape(-1, 2)
        verdict, words = verdict_on(scale.to(both[:, 0]) - scale.to(both[:, 1]), scale)
        place = f"{where:,.0f} iterations" if axis == "iteration" else f"{where:.3g} s"
        return Finding(f"{names} at {place.replace(',', ' ')}: {words}", verdict)


def verdict_on(differences: np.ndarray, scale: Scale = LOGARITHMIC) -> tuple[Verdict, str]:
    """Judge by the `rule` whether differences on a scale, one a seed, are below zero; also say so in words."""
    if not len(differences):
        return Verdict.OPEN, "nothing to compare"
    mean = float(differences.mean())
    if len(differences) < SEEDS:
        seeds = "1 seed" if len(differences) == 1 else f"{len(differences)} seeds"
        return Verdict.OPEN, f"{scale.compared(mean)} ({seeds}, too few)"
    margin = ERRORS * float(differences.std(ddof=1)) / np.sqrt(len(differences))
    low, high = scale.compared(mean - margin), scale.compared(mean + margin)
    words = f"{scale.compared(mean)} ({low} to {high}, {len(differences)} seeds)"
    if mean + margin < 0:
        return Verdict.HOLDS, words
    return (Verdict.FAILS if mean - margin > 0 else Verdict.OPEN), words


@dataclass(frozen=True)
class Reliable:
    """The test that every run of a method came to its end and learned: its last error is below its first."""

    method: str
    measure: Measure = RECONSTRUCTION.main

    def __call__(self, methods: Methods) -> list[Finding]:
        if self.method not in methods:
            return [Finding(f"no runs of {self.method}", Verdict.OPEN)]
        runs = methods[self.method]
        ended = [log for log in runs.logs if complete(log)]
        good = sum(self._learned(log) for log in ended)
        words = f"{runs.label}: {good} of {len(ended)} runs went to their end and learned"
        if len(ended) < SEEDS and good == len(ended):
            return [Finding(f"{words} (too few)", Verdict.OPEN)]
        return [Finding(words, Verdict.HOLDS if good == len(ended) else Verdict.FAILS)]

    def _learned(self, log: RunLog) -> bool:
        start, stop = (self.measure.of(log.evaluations[k]) for k in (0, -1))
        return done(log.end) and start is not None and stop is not None and stop < start


@dataclass(frozen=True)
class BestBelow:
    """The test that the best of some methods, by its mean over seeds, is below another at equal time."""

    candidates: tuple[str, ...]
    upper: str
    panel: Panel = Panel(RECONSTRUCTION.main, "training_seconds")

    def __call__(self, methods: Methods) -> list[Finding]:
        present = [name for name in self.candidates if name in methods]
        if not present or self.upper not in methods:
            return [Finding(f"no runs of {self.upper if present else 'any natural method'}", Verdict.OPEN)]
        logs = [log for name in present for log in methods[name].logs if complete(log)]
        where = common(logs, self.panel.axis)
        errors = {name: methods[name].error_at(where, self.panel) if where else [] for name in present}
        scores = {name: self.panel.measure.mean(values) for name, values in errors.items() if values}
        if not scores:
            return [Finding("no whole runs of any natural method", Verdict.OPEN)]
        return Below(min(scores, key=lambda name: scores[name]), self.upper, (self.panel,))(methods)
