"""What the paper claims of figure 2, and the tests that decide it from the logs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from natgrad_paper.figures.order import numbers
from natgrad_paper.report import health
from natgrad_paper.report.claims import (
    INTERVAL,
    SEEDS,
    Claim,
    Finding,
    Test,
    Verdict,
    absent,
    compare,
    together,
    verdict_on,
)
from natgrad_paper.report.load import Runs
from natgrad_paper.report.views import LOGARITHMIC

ORDER = 10.0
"""An order of magnitude."""
LEARNED = 0.95
"""Where nothing is learned, equal errors mean nothing; guessing is wrong in 98.4% of cases."""
SMALLEST = LOGARITHMIC.effect()[1]
Compared = Iterator[tuple[str, Any, Any]]
"""What is compared, A and B, one number per seed each."""

RULE = (
    (
        "A below B",
        f"compares two numbers of the same seed. It holds if {INTERVAL} of the mean over seeds of log(A / B) lies "
        f"below zero, and the mean by at least {SMALLEST}. It does not hold if both lie above zero. There is no "
        f"difference if the interval lies within {SMALLEST} of zero. Otherwise, and with fewer than {SEEDS} seeds, it "
        "is not decided.",
    ),
    (
        "variance",
        "of the outputs (class probabilities) over trainings that differ in one segment, unbiased, mean over held-out "
        "examples and classes; a method’s variance is the mean over the segments.",
    ),
    (
        "equal error",
        "the mean validation errors of the two methods’ trainings differ by at most twice the tolerance of the "
        f"matching, and both are below {LEARNED:.0%}, in every seed; otherwise what is compared at equal error is not "
        "decided.",
    ),
    (
        "void",
        f"where more than {health.SHARE:.0%} of the updates of a method and a seed were refused; seeds that were given "
        "up are left out.",
    ),
)
"""The rule in words, for the page: terms and what they mean."""


def tolerance(runs: Runs) -> float:
    """Return the difference of errors that the matching counts as none."""
    return float(runs.header["settings"]["match"]["tolerance"])


def below(words: str, a: Any, b: Any, factor: float = 1.0) -> Finding:
    """Return the finding on A below B / factor, from one number per seed each; the words show A / B."""
    ratios = np.asarray(a, float) / np.asarray(b, float)
    logs = np.log(ratios[np.isfinite(ratios) & (ratios > 0)])
    return replace(compare(words, logs), verdict=verdict_on(logs + np.log(factor))[0])


def sound(test: Test) -> Test:
    """Return the test, void if too many updates of a method and a seed were refused."""

    def judged(runs: Runs) -> list[Finding]:
        if missing := absent(runs, "ngd", "sgd"):
            return missing
        whole = numbers.trainings(runs).merge(numbers.finished(runs))
        for (method, seed), found in whole.groupby(numbers.PAIR):
            refused, made = found["refused"].sum(), found["made"].sum()
            if refused > health.SHARE * made:
                named = f"{runs.label(str(method))}, seed {seed}"
                return [Finding(f"void: {named}: {refused} of {made:.0f} updates refused", Verdict.VOID)]
        return test(runs)

    return judged


def equal_errors(runs: Runs) -> list[Finding]:
    """Tell whether the two methods are compared at the same validation error."""
    found = []
    for seed, error in numbers.paired(runs, numbers.trainings(runs, "segment"), "error").iterrows():
        near = abs(error["ngd"] - error["sgd"]) <= 2 * tolerance(runs) and error.max() < LEARNED
        words = f"seed {seed}: mean validation error NGD {error['ngd']:.2%}, SGD {error['sgd']:.2%}"
        found.append(Finding(words, Verdict.HOLDS if near else Verdict.OPEN))
    return found or absent(runs, "ngd", "sgd") or [Finding("no seed with whole runs of both", Verdict.OPEN)]


def lower(factor: float) -> Test:
    """Return the test that NGD's variance is below SGD's, by a factor."""

    def test(runs: Runs) -> list[Finding]:
        variance = numbers.paired(runs, numbers.measures(runs, "segment"), "variance")
        found = below("variance NGD / SGD", variance["ngd"], variance["sgd"], factor)
        equal = together(each.verdict for each in equal_errors(runs)) == Verdict.HOLDS
        return [found if equal else replace(found, verdict=Verdict.OPEN)]

    return test


def each_method(words: str, compared: Callable[[Runs, str], Compared]) -> Test:
    """Return the test of some A below B within every method."""

    def test(runs: Runs) -> list[Finding]:
        found = []
        for method in runs.methods:
            found += [below(f"{runs.label(method)}, {what}", a, b) for what, a, b in compared(runs, method)]
        return found or [Finding(f"no whole runs with {words}", Verdict.OPEN)]

    return test


def later_and_first(runs: Runs, method: str) -> Compared:
    """Yield the mean variance of the later segments and the variance of the first."""
    table = numbers.along(numbers.measures(runs, "segment").merge(numbers.finished(runs)), method, "segment")
    if table.shape[1] > 1:
        yield "later segments / first segment", table.iloc[:, 1:].mean(axis=1), table.iloc[:, 0]


def slower_and_faster(runs: Runs, method: str) -> Compared:
    """Yield the variances at each rate and the next faster one."""
    seeds = numbers.finished(runs).query("method == @method")["seed"]
    table = numbers.limit(runs, method)
    for fast, slow in pairwise(table):
        whole = table[table.index.isin(seeds)]
        yield f"variance at {slow:g} / at {fast:g} of the rate", whole[slow], whole[fast]


def after_drift(runs: Runs) -> list[Finding]:
    """Compare the errors on the equal mix after a drifting one; a difference within the tolerance decides nothing."""
    error = numbers.paired(runs, numbers.trainings(runs, "drift"), "error")
    ngd, sgd = error["ngd"].to_numpy(float), error["sgd"].to_numpy(float)
    plain = compare("validation error after the drift, NGD / SGD", np.log(ngd / sgd))
    better, _ = verdict_on(np.log((ngd + tolerance(runs)) / sgd))
    worse, _ = verdict_on(np.log((ngd - tolerance(runs)) / sgd))
    unclear = Verdict.EQUAL if plain.verdict is Verdict.EQUAL else Verdict.OPEN
    clear = better if better is Verdict.HOLDS else worse if worse is Verdict.FAILS else unclear
    return [replace(plain, verdict=clear)]


CLAIMS = (
    Claim(
        "a",
        "At equal validation error, the outputs of a model trained with natural gradient depend less on the examples "
        "of single segments than with SGD.",
        "Equal error; variance of NGD below SGD’s.",
        (equal_errors, sound(lower(1.0))),
    ),
    Claim(
        "b",
        "That variance is orders of magnitude lower.",
        "Equal error; variance of NGD below a tenth of SGD’s.",
        (equal_errors, sound(lower(ORDER))),
    ),
    Claim(
        "c",
        "The first examples have, relatively speaking, a big impact, with either method.",
        "For each method, the mean variance of the later segments below that of the first.",
        (sound(each_method("several segments", later_and_first)),),
    ),
    Claim(
        "d",
        "With a smaller rate the variance falls; in the limit, with a rate of 0, the model stays the same.",
        "For each method, variance at each smaller rate below that at the next larger one.",
        (sound(each_method("smaller rates", slower_and_faster)),),
    ),
    Claim(
        "e",
        "Natural gradient can deal better with nonstationary data.",
        "At the same matched rates, on a stream whose mix of classes drifts: validation error on the equal mix, mean "
        "of both directions, of NGD below SGD’s by more than the tolerance of the matching.",
        (sound(after_drift),),
        source="The paper suggests it from figure 2; it has no experiment on it.",
    ),
)
