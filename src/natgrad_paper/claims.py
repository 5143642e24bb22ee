"""Claims, judged from logs: what is claimed, by which rule it is judged, and what was measured.

Most claims are orderings, and all orderings are judged by one `rule`. A claim holds when all its
findings hold and does not hold when one of them does not; `together` has the rest.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import special

from natgrad_paper import health
from natgrad_paper.log import RunLog, done
from natgrad_paper.measures import LOGARITHMIC, RECONSTRUCTION, Measure, Panel, Scale, View
from natgrad_paper.series import Runs, common, complete, error_at

SEEDS, CONFIDENCE = 3, 0.95
"""An ordering is judged from so many seeds on, by Student's interval of this confidence."""

PLACES = {
    "training_seconds": "at equal training time (the shortest that runs of either have)",
    "iteration": "at equal iterations (the most that all of them reached)",
}
COMPARED = {"log": "log(error of A / error of B)", "linear": "error of A − error of B"}
INTERVAL = f"Student’s {CONFIDENCE:.0%} interval"
VOID_WORDS = (
    f"if more than {health.SHARE:.0%} of the steps of a run were refused, if λ was at its upper bound in more than "
    f"{health.SHARE:.0%} of its logged steps, if a run was given up because its steps led nowhere, or if neither "
    f"method’s error, by its mean over seeds, is below {health.LEFT:g} of the best constant answer’s."
)
CLAIM_WORDS = (
    "holds if all its comparisons hold, and does not hold if one of them does not; otherwise the first of “no "
    "difference”, “void”, “not run” and “not decided” that one of them is."
)
SURE_WORDS = (
    "Were there no difference, a single comparison would come out as “holds” in at most 25 of 1000 cases, and as “does "
    "not hold” in as many. A claim with several comparisons fails by chance more often than one with a single one."
)


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
    smallest = " or ".join(dict.fromkeys(panel.measure.scale.smallest_words for panel in view.panels))
    return (
        (
            "A below B",
            f"compares the errors of the two methods’ runs from the same seed, {places}. Between evaluations near "
            f"each other errors are interpolated as the figure draws them; between others they are not measured.",
        ),
        (
            "holds",
            f"if {INTERVAL} of the mean over seeds of {compared} lies below zero, and the mean by at least "
            f"{smallest}.",
        ),
        ("does not hold", "if interval and mean lie above zero, by as much."),
        (
            "no difference",
            f"if the interval lies within {smallest} of zero, and the logs state the best constant answer’s error.",
        ),
        ("not decided", f"otherwise, and with fewer than {SEEDS} seeds."),
        ("void", VOID_WORDS),
        ("not run", "if the logs have no runs of a method."),
        ("a claim", CLAIM_WORDS),
        (
            "which runs",
            "An error that is not finite counts as that of the untrained network; runs cut short from outside are "
            "left out.",
        ),
        ("how sure", SURE_WORDS),
    )


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
    weighty = (Verdict.FAILS, Verdict.EQUAL, Verdict.VOID, Verdict.ABSENT, Verdict.OPEN, Verdict.HOLDS)
    return next((verdict for verdict in weighty if verdict in found), Verdict.OPEN)


def lede(verdicts: Sequence[Verdict]) -> str:
    """Return in a sentence how the claims came out."""
    hold, fail, open_, equal, void, absent = (verdicts.count(each) for each in Verdict)
    parts = [f"{fail} do{'es' * (fail == 1)} not"]
    parts += [f"{equal} show{'s' * (equal == 1)} no difference"] if equal else []
    parts += [f"{void} {'is' if void == 1 else 'are'} void"] if void else []
    parts += [f"{absent} {'was' if absent == 1 else 'were'} not run"] if absent else []
    parts.append(f"and {open_} {'is' if open_ == 1 else 'are'} not decided")
    return f"On this evidence {hold} of {len(verdicts)} claims hold{'s' * (hold == 1)}, {', '.join(parts)}."


@dataclass(frozen=True)
class Below:
    """The test that one method's error is below another's, in each of the panels."""

    lower: str
    upper: str
    panels: tuple[Panel, ...] = RECONSTRUCTION.panels

    def __call__(self, methods: Methods) -> list[Finding]:
        if absent := [name for name in (self.lower, self.upper) if name not in methods]:
            return [Finding(f"no runs of {' or '.join(absent)}", Verdict.ABSENT)]
        return [self._along(panel, methods[self.lower], methods[self.upper]) for panel in self.panels]

    def _along(self, panel: Panel, lower: Runs, upper: Runs) -> Finding:
        axis, scale = panel.axis, panel.measure.scale
        names = panel.words(lower.label, upper.label)
        logs = [{log.header["seed"]: log for log in runs.logs if complete(log)} for runs in (lower, upper)]
        pairs = [(logs[0][seed], logs[1][seed]) for seed in sorted(logs[0].keys() & logs[1].keys())]
        where = common((log for pair in pairs for log in pair), axis)
        if where is None:
            return Finding(f"{names}: no seed with whole runs of both", Verdict.OPEN)
        place = f"{where:,.0f} iterations" if axis == "iteration" else f"{where:.3g} s"
        heading = f"{names} at {place.replace(',', ' ')}"
        if void := health.cause(log for pair in pairs for log in pair) or health.stayed(
            list(zip(*pairs, strict=True)), axis, where
        ):
            return Finding(f"{heading}: void: {void}", Verdict.VOID)
        errors = [tuple(error_at(log, panel, where) for log in pair) for pair in pairs]
        both = np.array([pair for pair in errors if None not in pair], float).reshape(-1, 2)
        if not len(both):
            return Finding(f"{heading}: not measured there", Verdict.OPEN)
        verdict, words = verdict_on(scale.to(both[:, 0]) - scale.to(both[:, 1]), scale)
        if verdict is Verdict.EQUAL and not all(health.states_plateau(log) for pair in pairs for log in pair):
            # Methods that never began are equal, too.
            return Finding(
                f"{heading}: {words}; whether either left the plateau, the logs do not say", Verdict.OPEN
            )
        return Finding(f"{heading}: {words}", verdict)


def verdict_on(differences: np.ndarray, scale: Scale = LOGARITHMIC) -> tuple[Verdict, str]:
    """Judge by the `rule` whether differences on a scale, one a seed, are below zero; also say so in words."""
    if not len(differences):
        return Verdict.OPEN, "nothing to compare"
    mean = float(differences.mean())
    if len(differences) < SEEDS:
        seeds = "1 seed" if len(differences) == 1 else f"{len(differences)} seeds"
        return Verdict.OPEN, f"{scale.compared(mean)} ({seeds}, too few)"
    reach = margin(differences)
    low, high = scale.compared(mean - reach), scale.compared(mean + reach)
    words = f"{scale.compared(mean)} ({low} to {high}, {len(differences)} seeds)"
    if abs(mean) + reach <= scale.smallest:
        return Verdict.EQUAL, f"{words}, no difference beyond {scale.smallest_words}"
    if not abs(mean) >= max(reach, scale.smallest):
        return Verdict.OPEN, words
    return (Verdict.HOLDS if mean < 0 else Verdict.FAILS), words


def margin(differences: np.ndarray) -> float:
    """Return half the width of Student's interval of their mean."""
    quantile = float(special.stdtrit(len(differences) - 1, (1 + CONFIDENCE) / 2))
    return quantile * float(differences.std(ddof=1)) / float(np.sqrt(len(differences)))


@dataclass(frozen=True)
class Reliable:
    """The test that every run of a method came to its end and learned.

    One has learned whose error has left the plateau, or where its log states none, whose error has fallen. A run that
    was given up counts against the method here, and only here; one still on the plateau decides nothing.
    """

    method: str
    measure: Measure = RECONSTRUCTION.main

    def __call__(self, methods: Methods) -> list[Finding]:
        if self.method not in methods:
            return [Finding(f"no runs of {self.method}", Verdict.ABSENT)]
        runs = methods[self.method]
        ended = [log for log in runs.logs if complete(log)]
        fell = [self._fell(log) for log in ended]
        learned = [fallen and self._left(log) for log, fallen in zip(ended, fell, strict=True)]
        words = f"{runs.label}: {sum(learned)} of {len(ended)} runs went to their end and learned"
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
        return done(log.end) and start is not None and stop is not None and stop < start

    def _left(self, log: RunLog) -> bool:
        share = health.relative(log, "iteration", float(log.evaluations[-1]["iteration"]))
        return share is None or share < health.LEFT


@dataclass(frozen=True)
class BestBelow:
    """The test that the best of some methods, by its mean over seeds, is below another at equal time."""

    candidates: tuple[str, ...]
    upper: str
    panel: Panel = Panel(RECONSTRUCTION.main, "training_seconds")

    def __call__(self, methods: Methods) -> list[Finding]:
        present = [name for name in self.candidates if name in methods]
        if not present or self.upper not in methods:
            return [Finding(f"no runs of {self.upper if present else 'any natural method'}", Verdict.ABSENT)]
        voids = {name: health.cause(log for log in methods[name].logs if complete(log)) for name in present}
        present = [name for name in present if not voids[name]]
        if not present:
            return [
                Finding(f"no sound runs of any natural method: {'; '.join(voids.values())}", Verdict.VOID)
            ]
        logs = [log for name in present for log in methods[name].logs if complete(log)]
        where = common(logs, self.panel.axis)
        errors = {name: methods[name].error_at(where, self.panel) if where else [] for name in present}
        scores = {name: self.panel.measure.mean(values) for name, values in errors.items() if values}
        if not scores:
            return [Finding("no whole runs of any natural method", Verdict.OPEN)]
        return Below(min(scores, key=lambda name: scores[name]), self.upper, (self.panel,))(methods)
