"""Claims, judged from runs: what is claimed, what was measured, and what follows by one rule.

`page.html.j2` states the rule in words. `compare` applies it to orderings, `together` to claims.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from natgrad_paper.report import health
from natgrad_paper.report.curves import common, errors_at, pairs
from natgrad_paper.report.load import Runs
from natgrad_paper.report.views import CLOCK, LOGARITHMIC, RECONSTRUCTION, Measure, Panel, Scale
from natgrad_paper.training.log import RunLog
from natgrad_paper.training.settings import CHOOSING

SEEDS, CONFIDENCE = 3, 0.95
"""An ordering needs at least this many seeds, and is judged by Student's interval of this confidence."""
INTERVAL = f"Student’s {CONFIDENCE:.0%} interval"
UNTIMED = "no runs by the clock"


class Verdict(StrEnum):
    """What the logs say about a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "not decided"
    EQUAL = "no difference"
    VOID = "void"
    ABSENT = "not run"


@dataclass(frozen=True)
class Finding:
    """One thing measured for a claim, in words, and what follows from it."""

    words: str
    verdict: Verdict
    beyond: str = ""
    """The smallest effect that counts, in words."""


Test = Callable[[Runs], list[Finding]]


@dataclass(frozen=True)
class Claim:
    """A claim and the tests that decide it."""

    key: str
    words: str
    rule: str
    """What is compared, in words."""
    tests: tuple[Test, ...]
    source: str = ""
    """A sentence on who makes the claim, if not the paper."""


@dataclass(frozen=True)
class Judged:
    """A claim with what was found."""

    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """What the findings say together."""
        return together(finding.verdict for finding in self.findings)

    @property
    def words(self) -> str:
        """The verdict in words."""
        beyond = next((found.beyond for found in self.findings if found.verdict is Verdict.EQUAL), "")
        return str(self.verdict) + f" beyond {beyond}" * bool(beyond and self.verdict is Verdict.EQUAL)


def judge(claims: Iterable[Claim], runs: Runs) -> list[Judged]:
    """Return every claim with its findings in the runs."""
    if not runs.judged:
        nothing = Finding(f"only seeds for choosing settings, from {CHOOSING} on", Verdict.ABSENT)
        return [Judged(claim, (nothing,)) for claim in claims]
    return [Judged(claim, tuple(found for test in claim.tests for found in test(runs))) for claim in claims]


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on all of them together; without any, it is not decided."""
    found = set(verdicts)
    weighty = (Verdict.FAILS, Verdict.EQUAL, Verdict.VOID, Verdict.ABSENT, Verdict.OPEN, Verdict.HOLDS)
    return next((verdict for verdict in weighty if verdict in found), Verdict.OPEN)


def lede(verdicts: Sequence[Verdict]) -> str:
    """Return one sentence on how the claims came out."""
    hold, fail, open_, equal, void, absent = (verdicts.count(each) for each in Verdict)
    parts = [f"{fail} do{'es' * (fail == 1)} not"]
    parts += [f"{equal} show{'s' * (equal == 1)} no difference"] if equal else []
    parts += [f"{void} {'is' if void == 1 else 'are'} void"] if void else []
    parts += [f"{absent} {'was' if absent == 1 else 'were'} not run"] if absent else []
    parts.append(f"and {open_} {'is' if open_ == 1 else 'are'} not decided")
    return f"On this evidence {hold} of {len(verdicts)} claims hold{'s' * (hold == 1)}, {', '.join(parts)}."


def interval(differences: np.ndarray) -> tuple[float, float, float]:
    """Return the mean of differences, one per seed, and the ends of Student's interval of it."""
    from scipy import stats  # here, because it takes half a second to import

    mean = float(np.mean(differences))
    error = float(np.std(differences, ddof=1)) / float(np.sqrt(len(differences)))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1)) * error
    return mean, mean - half, mean + half


def verdict_on(
    differences: np.ndarray, scale: Scale = LOGARITHMIC, smallest: float | None = None
) -> tuple[Verdict, str]:
    """Judge by the rule whether differences on a scale, one per seed, are below zero; return the verdict and words."""
    if not len(differences):
        return Verdict.OPEN, "nothing to compare"
    if len(differences) < SEEDS:
        seeds = "1 seed" if len(differences) == 1 else f"{len(differences)} seeds"
        return Verdict.OPEN, f"{scale.compared(float(np.mean(differences)))} ({seeds}, too few)"
    (mean, low, high), (least, beyond) = interval(differences), scale.effect(smallest)
    shown = [scale.compared(each) for each in (mean, low, high)]
    words = f"{shown[0]} ({shown[1]} to {shown[2]}, {len(differences)} seeds)"
    if max(-low, high) <= least:
        return Verdict.EQUAL, f"{words}, no difference beyond {beyond}"
    if high <= 0 and mean <= -least:
        return Verdict.HOLDS, words
    return Verdict.FAILS if low >= 0 and mean >= least else Verdict.OPEN, words


def compare(
    words: str, differences: np.ndarray, scale: Scale = LOGARITHMIC, smallest: float | None = None
) -> Finding:
    """Return the finding on whether differences on a scale, one per seed, are below zero; the words say of what."""
    verdict, shown = verdict_on(differences, scale, smallest)
    return Finding(f"{words}: {shown}", verdict, scale.effect(smallest)[1])


def absent(runs: Runs, *names: str) -> list[Finding]:
    """Return the finding that methods have no runs; none if all of them have runs."""
    missing = [name for name in names if not runs.method(name)]
    return [Finding(f"no runs of {' or '.join(missing)}", Verdict.ABSENT)] if missing else []


@dataclass(frozen=True)
class Below:
    """The test that one method's error is below another's, in each panel; in time only for runs by the clock."""

    lower: str
    upper: str
    panels: tuple[Panel, ...] = RECONSTRUCTION.panels
    smallest: float | None = None
    """The smallest effect that counts, if it is not the scale's: a share (0.02), or a difference."""

    def __call__(self, runs: Runs) -> list[Finding]:
        if missing := absent(runs, self.lower, self.upper):
            return missing
        panels = [panel for panel in self.panels if runs.timed or panel.axis != CLOCK]
        untimed = Finding(f"{self.lower} and {self.upper}: {UNTIMED}", Verdict.ABSENT)
        return [self._along(panel, runs) for panel in panels] or [untimed]

    def _along(self, panel: Panel, runs: Runs) -> Finding:
        names = panel.compares(runs.label(self.lower), runs.label(self.upper))
        found = pairs(runs, self.lower, self.upper, panel)
        if found.where is None:
            return Finding(f"{names}: no seed with whole runs of both", Verdict.OPEN)
        heading, logs = f"{names} at {panel.place(found.where)}", [log for pair in found.logs for log in pair]
        arms = list(zip(*found.logs, strict=True))
        if void := health.cause(logs) or health.stayed(arms, panel.axis, found.where):
            return Finding(f"{heading}: void: {void}", Verdict.VOID)
        if not len(found.differences):
            return Finding(f"{heading}: not measured there", Verdict.OPEN)
        result = compare(heading, found.differences, panel.measure.scale, self.smallest)
        if result.verdict is Verdict.EQUAL and not all(map(health.plateau, logs)):
            # Methods that never began to learn have equal errors, too.
            unsaid = "; whether either left the plateau, the logs do not say"
            return Finding(result.words + unsaid, Verdict.OPEN)
        return result


@dataclass(frozen=True)
class Reliable:
    """The test that every run of a method came to its end and learned.

    A run has learned if its error has left the plateau or, if its log states no plateau, if its error has fallen. A
    run that was given up counts against the method here, and only here. A run still on the plateau decides nothing.
    """

    method: str
    measure: Measure = RECONSTRUCTION.main

    def __call__(self, runs: Runs) -> list[Finding]:
        if missing := absent(runs, self.method):
            return missing
        ended = [log for log in runs.method(self.method) if log.complete]
        fell = [self._fell(log) for log in ended]
        learned = [fallen and self._left(log) for log, fallen in zip(ended, fell, strict=True)]
        share = f"{sum(learned)} of {len(ended)} runs"
        words = f"{runs.label(self.method)}: {share} went to their end and learned"
        if not all(fell):
            return [Finding(words, Verdict.FAILS)]
        if void := health.cause(ended):
            return [Finding(f"{words}; void: {void}", Verdict.VOID)]
        if ended and not any(learned):
            return [Finding(f"{words}; void: nobody has left the plateau", Verdict.VOID)]
        if len(ended) < SEEDS:
            return [Finding(f"{words} (too few)", Verdict.OPEN)]
        return [Finding(words, Verdict.HOLDS if all(learned) else Verdict.OPEN)]

    def _fell(self, log: RunLog) -> bool:
        start, stop = (self.measure.of(log.evaluations[k]) for k in (0, -1))
        return log.done and start is not None and stop is not None and stop < start

    def _left(self, log: RunLog) -> bool:
        share = health.relative(log, "iteration", float(log.evaluations[-1]["iteration"]))
        return share is None or share < health.LEFT


@dataclass(frozen=True)
class BestBelow:
    """The test that the best of some methods, by its mean over seeds, is below another at equal time."""

    candidates: tuple[str, ...]
    upper: str
    panel: Panel = Panel(RECONSTRUCTION.main, CLOCK)
    smallest: float | None = None

    def __call__(self, runs: Runs) -> list[Finding]:
        present = [name for name in self.candidates if runs.method(name)]
        if missing := absent(runs, *([self.upper] if present else self.candidates)):
            return missing
        whole = {name: [log for log in runs.method(name) if log.complete] for name in present}
        voids = {name: health.cause(logs) for name, logs in whole.items()}
        sound = {name: logs for name, logs in whole.items() if not voids[name]}
        if not sound:
            names = " or ".join(map(runs.label, present))
            return [Finding(f"no sound runs of {names}: {'; '.join(voids.values())}", Verdict.VOID)]
        where = common((log for logs in sound.values() for log in logs), self.panel.axis)
        errors = {name: errors_at(logs, self.panel, where) if where else [] for name, logs in sound.items()}
        scores = {name: self.panel.measure.mean(values) for name, values in errors.items() if values}
        if not scores:
            return [Finding(f"no whole runs of {' or '.join(map(runs.label, sound))}", Verdict.OPEN)]
        best = min(scores, key=lambda name: scores[name])
        return Below(best, self.upper, (self.panel,), self.smallest)(runs)
