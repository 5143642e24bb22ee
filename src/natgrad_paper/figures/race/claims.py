"""What the race asks: which of two methods reaches a training error first."""

from dataclasses import dataclass, replace

import numpy as np

from natgrad_paper.report import health
from natgrad_paper.report.claims import INTERVAL, SEEDS, UNTIMED, Claim, Finding, Verdict, absent, compare
from natgrad_paper.report.curves import compiling, time_to
from natgrad_paper.report.load import Runs
from natgrad_paper.report.views import CLOCK, LOGARITHMIC, Measure, Panel, View
from natgrad_paper.training.log import RunLog

ERROR = Measure("error", "training error", "training error, mean over cases")
TEST = Measure("test_error", "test error", "test error, mean over cases")
VIEW = View(
    (Panel(ERROR, CLOCK), Panel(ERROR)),
    (TEST,),
    "Error against training time, and against iterations",
)
RIVALS = {
    "nesterov": "tuned Nesterov momentum", "adam": "tuned Adam", "muon": "tuned Muon", "soap": "tuned SOAP",
    "shampoo": "tuned Shampoo", "kfac": "kfac-jax", "hf": "Hessian-Free", "lbfgs": "L-BFGS",
}  # fmt: skip
TUNED = ("nesterov", "adam", "muon", "soap", "shampoo", "kfac")
RULE = (
    (
        "sooner",
        "compares the training seconds that the runs of two methods from the same seed take to an error. A run that "
        "never reaches it counts as if it did at the end of the longer run, which favours it. It holds if "
        f"{INTERVAL} of the mean over seeds of log(time / time of the rival) lies below zero, and the mean by at least "
        f"{LOGARITHMIC.effect()[1]}.",
    ),
    (
        "lowest test error",
        "compares the least test error that two runs from the same seed have at any evaluation. It holds if "
        f"{INTERVAL} of the mean over seeds of log(error / error of the rival) lies below zero, and the mean by at "
        f"least {LOGARITHMIC.effect()[1]}.",
    ),
    ("void", f"if {health.VOID}, or if a run was given up. {health.LOWER}"),
    ("not decided", f"otherwise, with fewer than {SEEDS} seeds, and where nobody reaches the error."),
)


def raced(runs: Runs, first: str, rival: str) -> tuple[list[tuple[RunLog, RunLog]], list[Finding]]:
    """Return the whole runs of two methods, seed by seed, and the finding that hinders a comparison, if any."""
    if missing := absent(runs, first, rival):
        return [], missing
    if not runs.timed:
        return [], [Finding(UNTIMED, Verdict.ABSENT)]
    one, other = ({log.seed: log for log in runs.method(name) if log.complete} for name in (first, rival))
    pairs = [(one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())]
    if void := health.cause(log for pair in pairs for log in pair):
        names = f"{runs.label(first)} / {runs.label(rival)}"
        return pairs, [Finding(f"{names}: void: {void}", Verdict.VOID)]
    return pairs, []


@dataclass(frozen=True)
class LowestTest:
    """The test that one method's lowest test error is below another's."""

    first: str
    rival: str

    def __call__(self, runs: Runs) -> list[Finding]:
        pairs, hindrance = raced(runs, self.first, self.rival)
        if hindrance:
            return hindrance
        words = f"lowest test error, {runs.label(self.first)} / {runs.label(self.rival)}"
        found = [
            [min(filter(None, map(TEST.of, log.evaluations)), default=None) for log in pair] for pair in pairs
        ]
        shares = [one / other for one, other in found if one is not None and other is not None]
        return [compare(words, np.log(shares))]


@dataclass(frozen=True)
class Sooner:
    """The test that one method reaches each of the errors in the settings' `levels` sooner than another."""

    first: str
    rival: str
    compiling: bool = False
    """Whether the seconds that a method takes to compile are counted."""

    def __call__(self, runs: Runs) -> list[Finding]:
        pairs, hindrance = raced(runs, self.first, self.rival)
        if hindrance:
            return hindrance
        more = [compiling(runs.method(name)) if self.compiling else 0.0 for name in (self.first, self.rival)]
        return [self._to(level, pairs, more, runs) for level in runs.header["settings"]["levels"]]

    def _to(self, level: float, pairs: list[tuple[RunLog, RunLog]], more: list[float], runs: Runs) -> Finding:
        words = f"time to {level:g}, {runs.label(self.first)} / {runs.label(self.rival)}"
        found = [[time_to(log, level, ERROR) for log in pair] for pair in pairs]
        ends = [max(float(log.evaluations[-1]["training_seconds"]) for log in pair) for pair in pairs]
        met = [(pair, end) for pair, end in zip(found, ends, strict=True) if pair != [None, None]]
        if not met:
            return Finding(f"{words}: nobody reaches it", Verdict.OPEN)
        times = [[end if time is None else time for time in pair] for pair, end in met]
        result = compare(words, np.log([(a + more[0]) / (b + more[1]) for a, b in times]))
        shown = result.words
        for place, name in enumerate((self.first, self.rival)):
            late = sum(pair[place] is None for pair, _ in met)
            shown += f"; {late} of {len(met)} runs of {runs.label(name)} never reach it" * bool(late)
        return replace(result, words=shown)


OURS = "Not the paper’s claim, but a question of anyone who has a model to train."
CLAIMS = (
    *(Claim(letter, f"KNCG reaches the errors sooner than {words}.", "The time to each of the levels: KNCG sooner.",
            (Sooner("kncg", rival),), OURS)
      for letter, (rival, words) in zip("abcdefgh", RIVALS.items(), strict=True)),
    Claim("i", "It does, too, when the time to compile counts.",
          "The same with the seconds that each method takes to compile added.",
          tuple(Sooner("kncg", rival, compiling=True) for rival in TUNED), OURS),
    Claim("j", "KNCG’s lowest test error is below theirs.",
          "The least test error along the training: KNCG lower.",
          tuple(LowestTest("kncg", rival) for rival in TUNED), OURS),
)  # fmt: skip
