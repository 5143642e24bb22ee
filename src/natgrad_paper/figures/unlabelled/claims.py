"""What the paper claims of figure 1, what the figure shows, and the tests that decide it."""

from dataclasses import dataclass

import numpy as np

from natgrad_paper.report import health
from natgrad_paper.report.claims import Below, Claim, Finding, Verdict, absent, compare
from natgrad_paper.report.figure import draw_differences
from natgrad_paper.report.load import Runs
from natgrad_paper.report.parts import Cell, Part, Picture, Table
from natgrad_paper.report.tables import number, ranged
from natgrad_paper.report.views import LINEAR, Measure, Panel, View
from natgrad_paper.training.log import RunLog

WORDS = "cross-entropy on the whole training set\n(sum over outputs, mean over cases)"
COST = Panel(Measure("cross_entropy", "training cost", WORDS))
TRAIN = Panel(
    Measure("misclassified", "training error", "misclassified training cases, %", LINEAR, "%", 100.0)
)
TEST = Panel(Measure("test_misclassified", "test error", "misclassified test cases, %", LINEAR, "%", 100.0))
VIEW = View((COST, TRAIN, TEST), (), "Training and test error against the number of updates")
JUDGED = COST, TEST
"""What claims compare: the cost in place of the training error, because a count of mistakes can be zero."""

GROUPS = (
    ("The paper’s sizes", ("same", "other", "unlabelled")),
    ("Equal sizes, with the same samples above", ("other-equal", "unlabelled-equal")),
)
COMPARED = (("other", "same"), ("unlabelled", "same"), ("unlabelled", "other"))
LATE = 20
"""Steps up to here are left out of the mechanism's means: in the first ones all inputs agree."""


def differences(runs: Runs) -> list[Part]:
    """Return the section that shows the differences between conditions, seed by seed, which the claims judge."""
    pairs = [pair for pair in COMPARED if set(pair) <= set(runs.methods)]
    if not pairs:
        return []
    caption = (
        "One dot per seed, at the end of the shorter of the two runs; diamonds and lines: mean and Student’s 95% "
        "interval; grey: what is too small to count."
    )
    drawn = Picture(draw_differences(runs, pairs, *JUDGED), caption)
    return [Part("Differences between the conditions", "differences-between", [drawn])]


def dampings(runs: Runs) -> list[Part]:
    """Return the section that shows λ at the end of each condition, which may be another reason for a difference."""
    rows: list[list[str | Cell]] = []
    for name in runs.methods:
        logs = runs.method(name)
        ends = [log.evaluations[-1].get("damping") for log in logs if log.complete and log.evaluations]
        if known := [float(end) for end in ends if end is not None]:
            rows.append([runs.label(name), ranged(number(float(np.median(known))), known, len(logs))])
    caption = (
        "Median over seeds, with least and largest. The claims compare conditions that may differ in λ, too."
    )
    table = Table(["the metric’s samples", "λ at the end"], rows, caption, numbers=True)
    return [Part("λ at the end", "damping", [table])] if rows else []


def excess(log: RunLog) -> float | None:
    """Return the mean of log(held-out KL / the metric's own) over a run's logged steps, the first ones left out."""
    late = [step for step in log.steps if step["iteration"] > LATE]
    pairs = [(step.get("kl_held_out"), step.get("kl_metric")) for step in late]
    ratios = [np.log(held / own) for held, own in pairs if held and own]
    return float(np.mean(ratios)) if ratios else None


def excesses(runs: Runs, name: str) -> dict[int, float]:
    """Return the excess of each complete run of a method, by seed."""
    found = {log.seed: excess(log) for log in runs.method(name) if log.complete}
    return {seed: value for seed, value in found.items() if value is not None}


@dataclass(frozen=True)
class Exceeds:
    """The test that held-out KL exceeds the metric's own: with one method, or by less with one than with another."""

    method: str
    more: str = ""
    """The method with the larger excess; without one, the test is that there is an excess at all."""

    def __call__(self, runs: Runs) -> list[Finding]:
        names = [name for name in (self.method, self.more) if name]
        if missing := absent(runs, *names):
            return missing
        void = health.cause(log for name in names for log in runs.method(name) if log.complete)
        if void:
            return [Finding(f"held-out KL / the metric’s own: void: {void}", Verdict.VOID)]
        found = [excesses(runs, name) for name in names]
        if not self.more:
            below = -np.array(list(found[0].values()))
            return [compare(f"the metric’s own KL / held-out KL, {self.method}", below)]
        seeds = sorted(found[0].keys() & found[1].keys())
        differences = np.array([found[0][seed] - found[1][seed] for seed in seeds])
        return [compare(f"held-out KL / the metric’s own, {self.method} / {self.more}", differences)]


CLAIMS = (
    Claim(
        "a",
        "Re-using the gradient’s samples for the metric gives the worst training error and the worst test error.",
        "Other training samples, and unlabelled ones, below the same samples: training cost and test error.",
        (Below("other", "same", JUDGED), Below("unlabelled", "same", JUDGED)),
    ),
    Claim(
        "b",
        "Other training samples for the metric do better than the gradient’s own.",
        "Other training samples below the same samples: training cost and test error.",
        (Below("other", "same", JUDGED),),
    ),
    Claim(
        "c",
        "Unlabelled samples give the best test error, for a training error worse than other training samples give.",
        "Unlabelled below the same and below other training samples: test error; other below unlabelled: training "
        "cost.",
        (
            Below("unlabelled", "same", (TEST,)),
            Below("unlabelled", "other", (TEST,)),
            Below("other", "unlabelled", (COST,)),
        ),
    ),
    Claim(
        "d",
        "With the same samples a step is measured where it was made to look small: elsewhere it changes the model "
        "more than the metric says, and more so than with samples of the metric’s own.",
        f"½dᵀFd of a step on held-out inputs over that on the metric’s inputs, mean of the logarithm over logged steps "
        f"beyond the {LATE}th: above one with the same samples, and above that of the other conditions.",
        (Exceeds("same"), Exceeds("other", "same"), Exceeds("unlabelled", "same")),
        source="The paper’s argument, not measured there.",
    ),
    Claim(
        "e",
        "The same with metric batches of equal size.",
        "As (a) and (c), with as many samples in every metric as in the gradient.",
        (
            Below("other-equal", "same", JUDGED),
            Below("unlabelled-equal", "same", JUDGED),
            Below("unlabelled-equal", "other-equal", (TEST,)),
            Below("other-equal", "unlabelled-equal", (COST,)),
        ),
        source="A control the paper lacks: its metric has 256 samples in the first condition and 384 in the others.",
    ),
)
