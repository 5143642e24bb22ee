"""Verdicts on logs written by hand: each is reachable, and follows from the numbers and their spread."""

import math

import numpy as np
import pytest
from synthetic import run_log

from natgrad_paper.claims import Below, BestBelow, Claim, Reliable, Verdict, judge, rule, together, verdict_on
from natgrad_paper.experiments import curves_claims, unlabelled_claims
from natgrad_paper.measures import LINEAR, RECONSTRUCTION, Measure, Panel
from natgrad_paper.series import by_method

HOLDS, FAILS, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.OPEN


def methods(*logs):
    return {runs.name: runs for runs in by_method(list(logs))}


def pairs(scales, **rest):
    """Return runs of `a` that are so many times as bad as those of `b` from the same seed, on top of a spread
    between seeds that pairing has to remove."""
    return methods(
        *(run_log("a", seed, scale * 3.0**seed, order=0, **rest) for seed, scale in enumerate(scales)),
        *(run_log("b", seed, 3.0**seed, order=1) for seed in range(len(scales))),
    )


@pytest.mark.parametrize(
    ("scales", "verdict"),
    [
        ((0.5, 0.6, 0.55), HOLDS),
        ((2.0, 1.8, 1.9), FAILS),
        ((0.5, 0.9, 1.6), OPEN),  # the mean is below, the spread too large
        ((0.8, 0.6), OPEN),
        ((0.8,), OPEN),
        ((1.0, 1.0, 1.0), OPEN),
        ((0.99, 0.99, 0.99), HOLDS),
    ],
)
def test_ordering_is_judged_by_mean_and_spread_over_paired_seeds(scales, verdict):
    findings = Below("a", "b")(pairs(scales))
    assert [finding.verdict for finding in findings] == [verdict] * 2
    assert "A / B at 100 iterations" in findings[0].words
    assert "A / B at 4 s" in findings[1].words


def test_the_margin_is_two_standard_errors():
    spread = np.array([-1.0, 0.0, 1.0])  # standard error 1/√3
    margin = 2 / math.sqrt(3)
    assert verdict_on(spread - margin * 1.001)[0] is HOLDS
    assert verdict_on(spread - margin * 0.999)[0] is OPEN
    assert verdict_on(spread + margin * 0.999)[0] is OPEN
    assert verdict_on(spread + margin * 1.001)[0] is FAILS


def test_axes_are_judged_apart():
    # b takes twice the time for the same errors: lower at equal time, equal at equal iterations.
    def slow(seed):
        found = run_log("b", seed)
        for record in found.evaluations:
            record["training_seconds"] *= 2 + 0.1 * seed
        return found

    found = methods(*(run_log("a", seed, order=0) for seed in range(3)), *(slow(seed) for seed in range(3)))
    assert [finding.verdict for finding in Below("a", "b")(found)] == [OPEN, HOLDS]


def test_missing_methods_and_unpaired_seeds_are_not_decided():
    found = methods(run_log("a", 0), run_log("b", 1, order=2))
    assert Below("a", "c")(found)[0].words == "no runs of c"
    assert Below("x", "y")(found)[0].words == "no runs of x or y"
    assert [finding.verdict for finding in Below("a", "b")(found)] == [OPEN, OPEN]
    assert "no seed with whole runs of both" in Below("a", "b")(found)[0].words


def test_cut_runs_are_left_out_and_failed_ones_count():
    good = [run_log("b", seed, order=1) for seed in range(4)]
    scales = (0.5, 0.51, 0.52)
    better = [run_log("a", seed, scale, order=0) for seed, scale in enumerate(scales)]
    cut = run_log("a", 3, 50.0, order=0, end="interrupted", errors=(8.0, 7.0))
    assert "3 seeds" in (found := Below("a", "b")(methods(*good, *better, cut))[0]).words
    assert found.verdict is HOLDS
    failed = run_log("a", 3, 50.0, order=0, end="10 nonfinite steps in a row", errors=(8.0, 7.0))
    assert "4 seeds" in (found := Below("a", "b")(methods(*good, *better, failed))[0]).words
    assert "at 100 iterations" in found.words
    assert found.verdict is OPEN


def test_an_error_that_is_not_finite_counts_as_that_of_the_start():
    diverged = [run_log("a", seed, order=0, errors=(8.0, 4.0, None)) for seed in range(3)]
    found = Below("a", "b", RECONSTRUCTION.panels[:1])(
        methods(*diverged, *(run_log("b", seed) for seed in range(3)))
    )
    assert found[0].verdict is FAILS
    assert found[0].words == "A / B at 100 iterations: 4 (4 to 4, 3 seeds)"


def test_counted_errors_are_compared_by_their_difference():
    """In percent, where a run without any mistake has no logarithm."""
    panel = Panel(Measure("test_misclassified", "test error", "test error, %", LINEAR, "%", 100.0))

    def counted(name, seed, share):
        found = run_log(name, seed, order="ab".index(name))
        for record in found.evaluations:
            record["test_misclassified"] = share
        return found

    runs = [counted("a", seed, share) for seed, share in enumerate((0.0, 0.2, 0.1))]
    runs += [counted("b", seed, share) for seed, share in enumerate((0.04, 0.25, 0.16))]
    (found,) = Below("a", "b", (panel,))(methods(*runs))
    assert found.words == "A − B, test error, % at 100 iterations: −5 (−6.15 to −3.85, 3 seeds)"
    assert found.verdict is HOLDS
    assert Below("b", "a", (panel,))(methods(*runs))[0].verdict is FAILS


def test_the_rule_is_in_the_words_of_what_is_shown():
    curves_rule, faces_rule = (dict(rule(view)) for view in (RECONSTRUCTION, unlabelled_claims.VIEW))
    assert "at equal training time" in curves_rule["A below B"]
    assert "mean over seeds of log(error of A / error of B) is below" in curves_rule["holds"]
    assert "training time" not in faces_rule["A below B"]
    assert (
        "log(error of A / error of B) (training cost) or error of A − error of B (test error)"
        in (faces_rule["holds"])
    )


def test_conjunction():
    assert together([HOLDS, HOLDS]) is HOLDS
    assert together([HOLDS, OPEN]) is OPEN
    assert together([HOLDS, OPEN, FAILS]) is FAILS
    assert together([]) is OPEN
    (judged,) = judge([Claim("x", "", "", (Below("a", "b"),))], list(pairs((0.5, 0.6, 0.55)).values()))
    assert judged.verdict is HOLDS


@pytest.mark.parametrize(
    ("seeds", "last", "verdict"),
    [
        (3, {}, HOLDS),
        (2, {}, OPEN),
        (3, {"end": "10 nonfinite steps in a row"}, FAILS),
        (3, {"errors": (8.0, 9.0)}, FAILS),
        (3, {"errors": (8.0, None)}, FAILS),
        (3, {"end": "interrupted"}, OPEN),
    ],
)
def test_reliable_means_to_the_end_and_learned(seeds, last, verdict):
    logs = [run_log("a", seed) for seed in range(seeds - 1)] + [run_log("a", seeds - 1, **last)]
    assert Reliable("a")(methods(*logs))[0].verdict is verdict
    assert Reliable("b")(methods(*logs))[0].verdict is OPEN


def test_best_is_picked_at_equal_time():
    logs = [
        run_log(name, seed, scale * (1 + seed / 50))
        for name, scale in (("x", 0.9), ("y", 0.5))
        for seed in range(3)
    ]
    logs += [run_log("adam", seed) for seed in range(3)]
    (found,) = BestBelow(("x", "y", "z"), "adam")(methods(*logs))
    assert found.verdict is HOLDS
    assert found.words.startswith("Y / ADAM at 4 s")
    assert BestBelow(("x",), "nesterov")(methods(*logs))[0].words == "no runs of nesterov"
    assert BestBelow(("q",), "adam")(methods(*logs))[0].words == "no runs of any natural method"


def curves(scales, seeds=3):
    config = {"ksd": {"size": 20}}
    logs = [
        run_log(name, seed, scale * 1.01**seed, config=config, order=order)
        for order, (name, scale) in enumerate(scales.items())
        for seed in range(seeds)
    ]
    return {each.claim.key: each for each in judge(curves_claims.CLAIMS, by_method(logs))}


AS_CLAIMED = {
    "sgd": 9, "ngd": 3, "ngd-same": 4, "ngd-l": 2, "ncg-l": 1, "ncg-f": 1.5, "ngd-diag": 5, "ncg-f-diag": 6,
    "ksd": 1, "ksd-without": 2, "ngd-search-same": 3, "ngd-search-fresh": 2, "ngd-search-full": 1, "adam": 2,
    "nesterov": 3,
}  # fmt: skip


def test_all_claims_of_the_paper_hold_fail_and_stay_open():
    as_claimed = curves(AS_CLAIMED)
    assert list(as_claimed) == list("abcdefgh")
    assert {each.verdict for each in as_claimed.values()} == {HOLDS}
    reversed_ = curves({name: 1 / scale for name, scale in AS_CLAIMED.items()} | {"ngd": 1e3})
    assert {key for key, each in reversed_.items() if each.verdict is FAILS} == set("abcdefgh")
    assert {each.verdict for each in curves(AS_CLAIMED, seeds=2).values()} == {OPEN}


@pytest.mark.parametrize(
    ("missing", "keys"),
    [("ngd-same", "a"), ("ngd-l", "bd"), ("ncg-f", "cde"), ("sgd", "d"), ("ncg-f-diag", "e"), ("ksd", "f"),
     ("ksd-without", "f"), ("ngd-search-full", "g"), ("adam", "h")],
)  # fmt: skip
def test_claims_without_their_runs_are_not_decided(missing, keys):
    found = curves({name: scale for name, scale in AS_CLAIMED.items() if name != missing})
    assert {key for key, each in found.items() if each.verdict is OPEN} == set(keys)
    assert all(any(missing in finding.words for finding in found[key].findings) for key in keys)


def test_memory_follows_from_the_settings():
    words = curves(AS_CLAIMED)["f"].findings[-1].words
    assert "NCG 1, KSD 21" in words
