"""The claims of figure 1 on logs written by hand."""

import math

import pytest
from synthetic import REFUSED, run_log, steps

from natgrad_paper.figures.unlabelled.claims import CLAIMS, Exceeds, dampings, excess
from natgrad_paper.report.claims import Verdict, judge
from natgrad_paper.report.load import Runs

HOLDS, FAILS, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.OPEN

# Cost, share of test cases misclassified, held-out KL over the metric's own.
AS_CLAIMED = {
    "same": (3.0, 0.30, 1.5),
    "other": (1.0, 0.25, 1.1),
    "unlabelled": (2.0, 0.20, 1.0),
    "other-equal": (1.2, 0.26, 1.2),
    "unlabelled-equal": (2.2, 0.22, 1.1),
}


def judged(numbers, seeds=3):
    logs = []
    for order, (name, (cost, wrong, ratio)) in enumerate(numbers.items()):
        for seed in range(seeds):
            nudge = 1 + 0.01 * (seed + order) ** 2 / 10
            own = steps(kl_metric=0.1, kl_held_out=0.1 * ratio * nudge)
            found = run_log(name, seed, order=order, steps=own)
            for k, record in enumerate(found.evaluations):
                record["cross_entropy"] = 9 - k * (9 - cost * nudge) / 2
                record["test_misclassified"] = 0.9 - k * (0.9 - wrong * nudge) / 2
            logs.append(found)
    return {each.claim.key: each for each in judge(CLAIMS, Runs.of(logs))}


def test_claims_hold_fail_and_stay_open():
    found = judged(AS_CLAIMED)
    assert list(found) == list("abcde")
    assert {each.verdict for each in found.values()} == {HOLDS}
    reversed_ = {
        name: (1 / cost, 1 / wrong / 9, 1 / ratio) for name, (cost, wrong, ratio) in AS_CLAIMED.items()
    }
    assert {each.verdict for each in judged(reversed_).values()} == {FAILS}
    assert {each.verdict for each in judged(AS_CLAIMED, seeds=2).values()} == {OPEN}


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        (
            {"other": (4.0, 0.25, 1.1)},
            "abc",
        ),  # and so the unlabelled ones' training error is not worse than it
        ({"unlabelled": (2.0, 0.35, 1.0)}, "ac"),
        ({"unlabelled": (0.5, 0.20, 1.0)}, "c"),
        ({"unlabelled": (2.0, 0.20, 1.7)}, "d"),
        ({"same": (3.0, 0.30, 0.8)}, "d"),
        ({"unlabelled-equal": (0.5, 0.22, 1.1)}, "e"),
    ],
)
def test_each_claim_depends_on_its_own_numbers(change, fails):
    found = judged(AS_CLAIMED | change)
    assert "".join(key for key, each in found.items() if each.verdict is FAILS) == fails


def test_the_mechanism_is_measured_beyond_the_first_steps():
    early = tuple({"iteration": k, "kl_metric": 1.0, "kl_held_out": 9.0} for k in range(1, 21))
    late = tuple({"iteration": k, "kl_metric": 1.0, "kl_held_out": 2.0} for k in (21, 30, 40))
    refused = ({"iteration": 50, "kl_metric": 0.0, "kl_held_out": 0.0},)
    assert excess(run_log(steps=early + late + refused)) == pytest.approx(math.log(2))
    assert excess(run_log(steps=early)) is None
    assert excess(run_log(steps=({"iteration": 30, "kl": 1.0},))) is None


def test_without_runs_nothing_is_decided():
    found = judge(CLAIMS, Runs.of([run_log("same")]))
    assert {each.verdict for each in found} == {Verdict.ABSENT}


def test_the_mechanism_of_ailing_runs_is_void():
    runs = Runs.of([run_log("same", seed, end=REFUSED) for seed in range(3)])
    (finding,) = Exceeds("same")(runs)
    assert finding.verdict is Verdict.VOID
    assert "50 steps in a row refused" in finding.words


def test_the_page_says_what_damping_each_condition_ended_with():
    logs = [run_log("same", seed) for seed in range(3)] + [run_log("other", 0, end=None, order=2)]
    for found, end in zip(logs, (0.5, 0.03, 4.0, 7.0), strict=True):
        found.evaluations[-1]["damping"] = end
    ((table,),) = [part.contents for part in dampings(Runs.of(logs))]
    assert [(row[0], row[1].text, row[1].note) for row in table.rows] == [("SAME", "0.500", "(0.0300–4.00)")]
    assert dampings(Runs.of(logs[3:])) == []
