"""What the paper claims of figure 2, and the tests that decide it from the logs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from natgrad_paper import health
from natgrad_paper.claims import (
    CLAIM_WORDS,
    INTERVAL,
    SEEDS,
    SURE_WORDS,
    Claim,
    Finding,
    Methods,
    Test,
    Verdict,
    together,
    verdict_on,
)
from natgrad_paper.log import RunLog
from natgrad_paper.measures import LOGARITHMIC
from natgrad_paper.order import numbers

ORDER = 10.0
"""An order of magnitude."""

LEARNED = 0.95
"""Where nothing is learned, equal errors mean nothing; guessing is wrong in 98.4% of cases."""

RULE = (
    (
        "A below B",
        f"compares two numbers of the same seed. It holds if {INTERVAL} of the mean over seeds of log(A / B) lies "
        f"below zero, and the mean by at least {LOGARITHMIC.smallest_words}. It does not hold if both lie above zero. "
        f"There is no difference if the interval lies within {LOGARITHMIC.smallest_words} of zero. Otherwise, and with "
        f"fewer than {SEEDS} seeds, it is not decided.",
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
        f"where more than {health.SHARE:.0%} of the updates of a method and a seed were refused; trainings that were "
        "given up are left out.",
    ),
    ("a claim", CLAIM_WORDS),
    ("how sure", SURE_WORDS),
)
"""The rule in words, for the page: terms and what they mean."""


def both(methods: Methods) -> list[tuple[RunLog, RunLog]]:
    """Return the finished logs of (NGD, SGD) of each seed that has both."""
    if "ngd" not in methods or "sgd" not in methods:
        return []
    ngd, sgd = numbers.whole(methods["ngd"]), numbers.whole(methods["sgd"])
    return [(ngd[seed], sgd[seed]) for seed in sorted(ngd.keys() & sgd.keys())]


def ratio(words: str, pairs: Sequence[tuple[float, float]], factor: float = 1.0) -> Finding:
    """Return the finding on A below B / factor, from a pair (A, B) a seed; the words show A / B."""
    logs = np.array([np.log(a / b) for a, b in pairs if a > 0 and b > 0])
    verdict, shown = verdict_on(logs)
    return Finding(f"{words}: {shown}", verdict if factor == 1 else verdict_on(logs + np.log(factor))[0])


def sound(test: Test) -> Test:
    """Return the test, void where too many updates of a finished log were refused."""

    def judged(methods: Methods) -> list[Finding]:
        for runs in methods.values():
            for seed, log in numbers.whole(runs).items():
                refused, updates = numbers.refused(log), numbers.clocks(log)["updates"]
                if refused > health.SHARE * updates:
                    words = f"void: {runs.label}, seed {seed}: {refused} of {updates:.0f} updates refused"
                    return [Finding(words, Verdict.VOID)]
        return test(methods)

    return judged


def equal_errors(methods: Methods) -> list[Finding]:
    """Whether the two methods are compared at the same validation error."""
    found = []
    for ngd, sgd in both(methods):
        a, b = (float(np.mean(numbers.errors(log))) for log in (ngd, sgd))
        near = abs(a - b) <= 2 * ngd.header["config"]["match"]["tolerance"] and max(a, b) < LEARNED
        words = f"seed {ngd.header['seed']}: mean validation error NGD {a:.2%}, SGD {b:.2%}"
        found.append(Finding(words, Verdict.HOLDS if near else Verdict.OPEN))
    return found or [Finding("no seed with whole runs of both", Verdict.OPEN)]


def lower(factor: float) -> Callable[[Methods], list[Finding]]:
    """Return the test that NGD's variance is below SGD's, by a factor."""

    def test(methods: Methods) -> list[Finding]:
        pairs = [tuple(float(numbers.curve(log).mean()) for log in logs) for logs in both(methods)]
        found = ratio("variance NGD / SGD", [(a, b) for a, b in pairs], factor)
        equal = together(each.verdict for each in equal_errors(methods)) == Verdict.HOLDS
        return [found if equal else replace(found, verdict=Verdict.OPEN)]

    return test


def each_method(
    words: str, pair: Callable[[RunLog], list[tuple[str, float, float]]]
) -> Callable[[Methods], list[Finding]]:
    """Return the test of some A below B within every run of a method; `pair` returns (what, A, B) of a log."""

    def test(methods: Methods) -> list[Finding]:
        found = []
        for runs in methods.values():
            compared: dict[str, list[tuple[float, float]]] = {}
            for log in numbers.whole(runs).values():
                for what, a, b in pair(log):
                    compared.setdefault(what, []).append((a, b))
            found += [ratio(f"{runs.label}, {what}", pairs) for what, pairs in compared.items()]
        return found or [Finding(f"no whole runs with {words}", Verdict.OPEN)]

    return test


def later_and_first(log: RunLog) -> list[tuple[str, float, float]]:
    """Return the mean variance of the later segments and the variance of the first."""
    found = numbers.curve(log)
    return (
        [("later segments / first segment", float(found[1:].mean()), float(found[0]))]
        if len(found) > 1
        else []
    )


def slower_and_faster(log: RunLog) -> list[tuple[str, float, float]]:
    """Return the variances at each rate and the next faster one."""
    found = numbers.limit(log)
    return [
        (f"variance at {slow:g} / at {fast:g} of the rate", a, b) for (fast, b), (slow, a) in pairwise(found)
    ]


def after_drift(methods: Methods) -> list[Finding]:
    """Compare the errors on the equal mix after a drifting one; what the matching leaves open decides nothing."""
    errors = np.array(
        [[np.mean(numbers.drift_errors(log) or [np.nan]) for log in logs] for logs in both(methods)]
    ).reshape(-1, 2)
    ngd, sgd = errors.T
    tolerance = both(methods)[0][0].header["config"]["match"]["tolerance"] if len(errors) else 0.0
    plain, shown = verdict_on(np.log(ngd / sgd))
    better, _ = verdict_on(np.log((ngd + tolerance) / sgd))
    worse, _ = verdict_on(np.log((ngd - tolerance) / sgd))
    unclear = plain if plain is Verdict.EQUAL else Verdict.OPEN
    clear = better if better is Verdict.HOLDS else worse if worse is Verdict.FAILS else unclear
    return [Finding(f"validation error after the drift, NGD / SGD: {shown}", clear)]


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
