"""What the paper claims of figure 2, and the tests that decide it from the logs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from natgrad_paper.figures.order.numbers import Measured, measured
from natgrad_paper.report import health
from natgrad_paper.report.claims import (
    CLAIM_WORDS,
    INTERVAL,
    SEEDS,
    SURE_WORDS,
    Claim,
    Finding,
    Test,
    Verdict,
    absent,
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
        "matching, and both are below 95%, in every seed; otherwise what is compared at equal error is not decided.",
    ),
    (
        "void",
        f"where more than {health.SHARE:.0%} of the updates of a method and a seed were refused; seeds that were given "
        "up are left out.",
    ),
    ("a claim", CLAIM_WORDS),
    ("how sure", SURE_WORDS),
)
"""The rule in words, for the page: terms and what they mean."""


def whole(runs: Runs, method: str) -> dict[int, Measured]:
    """Return what there is of a method's finished seeds."""
    return {found.log.seed: found for found in measured(runs, method) if found.whole}


def both(runs: Runs) -> list[tuple[Measured, Measured]]:
    """Return (NGD, SGD) of each seed that has both, whole."""
    ngd, sgd = whole(runs, "ngd"), whole(runs, "sgd")
    return [(ngd[seed], sgd[seed]) for seed in sorted(ngd.keys() & sgd.keys())]


def ratio(words: str, pairs: Sequence[tuple[float, float]], factor: float = 1.0) -> Finding:
    """Return the finding on A below B / factor, from a pair (A, B) per seed; the words show A / B."""
    logs = np.array([np.log(a / b) for a, b in pairs if a > 0 and b > 0])
    verdict, shown = verdict_on(logs)
    return _finding(f"{words}: {shown}", verdict if factor == 1 else verdict_on(logs + np.log(factor))[0])


def sound(test: Test) -> Test:
    """Return the test, void where too many updates of a seed were refused."""

    def judged(runs: Runs) -> list[Finding]:
        for method in runs.methods:
            for seed, found in whole(runs, method).items():
                spent = found.spent()
                if spent["refused"] > health.SHARE * spent["updates"]:
                    share = f"{spent['refused']:.0f} of {spent['updates']:.0f} updates refused"
                    return [Finding(f"void: {runs.label(method)}, seed {seed}: {share}", Verdict.VOID)]
        return absent(runs, "ngd", "sgd") or test(runs)

    return judged


def equal_errors(runs: Runs) -> list[Finding]:
    """Tell whether the two methods are compared at the same validation error."""
    found = []
    for ngd, sgd in both(runs):
        a, b = (float(np.mean(each.errors("segment"))) for each in (ngd, sgd))
        near = abs(a - b) <= 2 * ngd.settings["match"]["tolerance"] and max(a, b) < LEARNED
        words = f"seed {ngd.log.seed}: mean validation error NGD {a:.2%}, SGD {b:.2%}"
        found.append(Finding(words, Verdict.HOLDS if near else Verdict.OPEN))
    return found or absent(runs, "ngd", "sgd") or [Finding("no seed with whole runs of both", Verdict.OPEN)]


def lower(factor: float) -> Test:
    """Return the test that NGD's variance is below SGD's, by a factor."""

    def test(runs: Runs) -> list[Finding]:
        pairs = [(float(ngd.curve().mean()), float(sgd.curve().mean())) for ngd, sgd in both(runs)]
        found = ratio("variance NGD / SGD", pairs, factor)
        equal = together(each.verdict for each in equal_errors(runs)) == Verdict.HOLDS
        return [found if equal else replace(found, verdict=Verdict.OPEN)]

    return test


def each_method(words: str, pair: Callable[[Measured], list[tuple[str, float, float]]]) -> Test:
    """Return the test of some A below B within every seed of a method; `pair` returns (what, A, B) of one."""

    def test(runs: Runs) -> list[Finding]:
        found = []
        for method in runs.methods:
            compared: dict[str, list[tuple[float, float]]] = {}
            for each in whole(runs, method).values():
                for what, a, b in pair(each):
                    compared.setdefault(what, []).append((a, b))
            found += [ratio(f"{runs.label(method)}, {what}", pairs) for what, pairs in compared.items()]
        return found or [Finding(f"no whole runs with {words}", Verdict.OPEN)]

    return test


def later_and_first(found: Measured) -> list[tuple[str, float, float]]:
    """Return the mean variance of the later segments and the variance of the first."""
    first, *later = found.curve()
    return [("later segments / first segment", float(np.mean(later)), float(first))] if later else []


def slower_and_faster(found: Measured) -> list[tuple[str, float, float]]:
    """Return the variances at each rate and the next faster one."""
    steps = pairwise(found.limit())
    return [(f"variance at {slow:g} / at {fast:g} of the rate", a, b) for (fast, b), (slow, a) in steps]


def after_drift(runs: Runs) -> list[Finding]:
    """Compare the errors on the equal mix after a drifting one; what the matching leaves open decides nothing."""
    pairs = both(runs)
    errors = [[np.mean(each.errors("drift") or [np.nan]) for each in pair] for pair in pairs]
    ngd, sgd = np.array(errors, float).reshape(-1, 2).T
    tolerance = pairs[0][0].settings["match"]["tolerance"] if pairs else 0.0
    plain, shown = verdict_on(np.log(ngd / sgd))
    better, _ = verdict_on(np.log((ngd + tolerance) / sgd))
    worse, _ = verdict_on(np.log((ngd - tolerance) / sgd))
    unclear = plain if plain is Verdict.EQUAL else Verdict.OPEN
    clear = better if better is Verdict.HOLDS else worse if worse is Verdict.FAILS else unclear
    return [_finding(f"validation error after the drift, NGD / SGD: {shown}", clear)]


def _finding(words: str, verdict: Verdict) -> Finding:
    return Finding(words, verdict, SMALLEST if verdict is Verdict.EQUAL else "")


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
