"""Verdicts on logs written by hand: each is reachable, and follows from the numbers and their spread."""

import math

import numpy as np
import pytest
from synthetic import run_log

from natgrad_paper.claims import Below, BestBelow, Claim, Reliable, Verdict, judge, rule, together, verdict_on
from natgrad_paper.experiments import curves_claims, unlabelled_claims
from natgrad_paper.measures import LINEAR, RECONSTRUCTION, Measure, Panel
from natgrad_paper.series import by_method

HOLDS, FAILS, OPEN, EQUAL, VOID, ABSENT = Verdict


def methods(*logs):
    return {runs.name: runs for runs in by_method(list(logs))}


def level(log, plateau=100.0):
    """Return the log, with an error of the best constant answer."""
    log.header["plateau"] = {"squared_error": plateau}
    return log


def pairs(scales, **rest):
    """Return runs of `a` that are so many times as bad as those of `b` from the same seed, on top of a spread
    between seeds that pairing has to remove."""
    return methods(
        *(level(run_log("a", seed, scale * 3.0**seed, order=0, **rest)) for seed, scale in enumerate(scales)),
        *(level(run_log("b", seed, 3.0**seed, order=1)) for seed in range(len(scales))),
    )


@pytest.mark.parametrize(
    ("scales", "verdict"),
    [
        ((0.5, 0.6, 0.55), HOLDS),
        ((2.0, 1.8, 1.9), FAILS),
        ((0.5, 0.9, 1.6), OPEN),  # the mean is below, the spread too large
        ((0.8, 0.6), OPEN),
        ((0.8,), OPEN),
        ((1.0, 1.0, 1.0), EQUAL),
        ((0.99, 0.99, 0.99), EQUAL),  # as sure as can be, and too little to matter
        ((0.97, 0.97, 0.97), HOLDS),
        ((1.03, 1.03, 1.03), FAILS),
        ((0.99, 1.01, 1.0), OPEN),
        ((0.999, 1.001, 1.0), EQUAL),
    ],
)
def test_ordering_is_judged_by_mean_and_spread_over_paired_seeds(scales, verdict):
    findings = Below("a", "b")(pairs(scales))
    assert [finding.verdict for finding in findings] == [verdict] * 2
    assert "A / B at 100 iterations" in findings[0].words
    assert "A / B at 4 s" in findings[1].words


def test_the_margin_is_students():
    spread = np.array([-1.0, 0.0, 1.0])  # standard error 1/√3
    margin = 4.302653 / math.sqrt(3)  # the 97.5% point with 2 degrees of freedom, from a printed table
    assert verdict_on(spread - margin * 1.001)[0] is HOLDS
    assert verdict_on(spread - margin * 0.999)[0] is OPEN
    assert verdict_on(spread + margin * 0.999)[0] is OPEN
    assert verdict_on(spread + margin * 1.001)[0] is FAILS
    assert verdict_on(spread * np.nan)[0] is OPEN
    assert "no difference beyond 2%" in verdict_on(spread / 1000)[1]
    assert "no difference beyond 0.5 points" in verdict_on(spread / 100, LINEAR)[1]


def test_no_difference_is_found_only_where_somebody_is_known_to_have_learned():
    logs = [run_log(name, seed) for name in "ab" for seed in range(3)]
    for finding in Below("a", "b")(methods(*logs)):
        assert finding.verdict is OPEN
        assert "whether either left the plateau, the logs do not say" in finding.words


def test_axes_are_judged_apart():
    # b takes half as long again for the same errors: lower at equal time, equal at equal iterations.
    def slow(seed):
        found = run_log("b", seed)
        for record in found.evaluations:
            record["training_seconds"] *= 1.5 + 0.1 * seed
        return found

    logs = [run_log("a", seed, order=0) for seed in range(3)] + [slow(seed) for seed in range(3)]
    found = methods(*map(level, logs))
    assert [finding.verdict for finding in Below("a", "b")(found)] == [EQUAL, HOLDS]


def test_missing_methods_are_not_run_and_unpaired_seeds_not_decided():
    found = methods(run_log("a", 0), run_log("b", 1, order=2))
    assert Below("a", "c")(found)[0].words == "no runs of c"
    assert Below("a", "c")(found)[0].verdict is ABSENT
    assert Below("x", "y")(found)[0].words == "no runs of x or y"
    assert [finding.verdict for finding in Below("a", "b")(found)] == [OPEN, OPEN]
    assert "no seed with whole runs of both" in Below("a", "b")(found)[0].words


def test_cut_runs_are_left_out():
    good = [run_log("b", seed, order=1) for seed in range(4)]
    scales = (0.5, 0.51, 0.52)
    better = [run_log("a", seed, scale, order=0) for seed, scale in enumerate(scales)]
    cut = run_log("a", 3, 50.0, order=0, end="interrupted", errors=(8.0, 7.0))
    assert "3 seeds" in (found := Below("a", "b")(methods(*good, *better, cut))[0]).words
    assert found.verdict is HOLDS


CONVERGED = "50 steps in a row changed the loss by less than it can resolve: converged, or stuck"
NONFINITE = "10 steps in a row refused: nonfinite loss"


def ailing(name="a", seed=1, refused=0, pinned=0, end="finished", bounds=(1e-8, 1e6), **rest):
    """Return a run of 100 steps, some of them refused, of whose 20 logged ones some have λ at its bound."""
    dampings = [1e6] * pinned + [3.0] * (20 - pinned)
    found = run_log(
        name,
        seed,
        0.5,
        end,
        steps=tuple({"iteration": 1 + k, "damping": d} for k, d in enumerate(dampings)),
        **rest,
    )
    found.header["damping"] = {"reduction": "quadratic", "bounds": list(bounds)}
    found.evaluations[-1]["refused"] = refused
    return found


@pytest.mark.parametrize(
    ("ail", "cause"),
    [
        ({}, None),
        ({"refused": 10}, None),
        ({"refused": 11}, "11 of 100 steps refused"),
        ({"pinned": 2}, None),
        ({"pinned": 3}, "λ at its upper bound in 3 of 20 logged steps"),
        ({"pinned": 3, "bounds": (1e-8, 1e8)}, None),
        ({"bounds": (3.0, 1e8)}, None),  # at its floor, where a healthy λ may rest
        ({"end": NONFINITE}, NONFINITE),
        ({"end": CONVERGED}, CONVERGED),
    ],
)
def test_a_finding_on_an_ailing_run_is_void_and_says_why(ail, cause):
    """On whichever side it is; a sound one is judged."""
    sound = [run_log("a", seed, 0.5 + seed / 100, order=0) for seed in (0, 2, 3)]
    others = [run_log("b", seed, order=1) for seed in range(4)]
    found = methods(*sound, ailing(**ail), *others)
    for finding in (*Below("a", "b")(found), *Below("b", "a")(found), *BestBelow(("a",), "b")(found)):
        if cause is None:
            assert finding.verdict in (HOLDS, FAILS)
        else:
            assert finding.verdict is VOID
            assert cause in finding.words
            assert "A, seed 1" in finding.words


def test_void_says_how_many_runs_are_like_it():
    found = methods(
        *(ailing(seed=seed, refused=50) for seed in range(3)), *(run_log("b", s) for s in range(3))
    )
    assert Below("a", "b")(found)[0].words.endswith(
        "void: A, seed 0: 50 of 100 steps refused; 2 more runs like it"
    )


def test_the_best_is_picked_among_sound_runs():
    found = methods(
        *(ailing("x", seed, refused=50) for seed in range(3)),
        *(run_log("y", seed, 0.7 + seed / 100) for seed in range(3)),
        *(run_log("adam", seed) for seed in range(3)),
    )
    (picked,) = BestBelow(("x", "y"), "adam")(found)
    assert picked.words.startswith("Y / ADAM")
    assert picked.verdict is HOLDS


def test_nothing_is_found_where_neither_arm_has_left_the_plateau():
    """Errors fall from 8 to 2 for b, to a part of it for a."""
    for plateau, verdict in ((2.0, VOID), (1.5, VOID), (2.4, HOLDS), (4.0, HOLDS)):
        logs = [level(run_log("a", s, 0.95 + s / 1000), plateau) for s in range(3)]
        logs += [level(run_log("b", s), plateau) for s in range(3)]
        found = Below("a", "b")(methods(*logs))
        assert [finding.verdict for finding in found] == [verdict] * 2, plateau
        assert ("nobody has left the plateau" in found[0].words) == (verdict is VOID)
    one = [level(run_log("a", s, 0.1 + s / 1000)) for s in range(3)]
    one += [level(run_log("b", s, 2.0)) for s in range(3)]
    assert Below("a", "b")(methods(*one))[0].verdict is HOLDS  # one of the two is enough


def test_what_was_not_measured_is_not_compared():
    """One method is looked at after 10 steps, the other gets no further than 5."""
    short = [run_log("a", seed, order=0) for seed in range(3)]
    for log in short:
        for record, iteration in zip(log.evaluations, (0, 3, 5), strict=True):
            record["iteration"] = iteration
    found = Below("a", "b", RECONSTRUCTION.panels[:1])(methods(*short, *(run_log("b", s) for s in range(3))))
    assert found[0].words == "A / B at 5 iterations: not measured there"
    assert found[0].verdict is OPEN


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
    assert found.words == "A − B, test error, % at 100 iterations: −5 (−7.48 to −2.52, 3 seeds)"
    assert found.verdict is HOLDS
    assert Below("b", "a", (panel,))(methods(*runs))[0].verdict is FAILS


def test_the_rule_is_in_the_words_of_what_is_shown():
    curves_rule, faces_rule = (dict(rule(view)) for view in (RECONSTRUCTION, unlabelled_claims.VIEW))
    assert "at equal training time" in curves_rule["A below B"]
    assert "mean over seeds of log(error of A / error of B) lies below" in curves_rule["holds"]
    assert "2% or 0.5 points" in faces_rule["no difference"]
    assert "10%" in curves_rule["void"]
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
    assert together([HOLDS, ABSENT, OPEN]) is ABSENT
    assert together([HOLDS, VOID, ABSENT, OPEN]) is VOID
    assert together([EQUAL, VOID]) is EQUAL
    assert together([EQUAL, FAILS]) is FAILS
    (judged,) = judge([Claim("x", "", "", (Below("a", "b"),))], list(pairs((0.5, 0.6, 0.55)).values()))
    assert judged.verdict is HOLDS


@pytest.mark.parametrize(
    ("seeds", "last", "verdict"),
    [
        (3, {}, HOLDS),
        (2, {}, OPEN),
        (3, {"end": NONFINITE}, FAILS),
        (3, {"errors": (8.0, 9.0)}, FAILS),
        (3, {"errors": (8.0, None)}, FAILS),
        (3, {"end": "interrupted"}, OPEN),
    ],
)
def test_reliable_means_to_the_end_and_learned(seeds, last, verdict):
    logs = [run_log("a", seed) for seed in range(seeds - 1)] + [run_log("a", seeds - 1, **last)]
    assert Reliable("a")(methods(*logs))[0].verdict is verdict
    assert Reliable("b")(methods(*logs))[0].verdict is ABSENT


def test_a_run_on_the_plateau_has_not_learned_and_an_ailing_one_is_no_evidence():
    def judged(*logs):
        return Reliable("a")(methods(*logs))[0].verdict

    left = [level(run_log("a", seed)) for seed in range(3)]
    on_it = [level(run_log("a", 3 + seed), 2.2) for seed in range(3)]
    assert judged(*left) is HOLDS
    assert judged(*left, *on_it) is OPEN
    assert judged(*on_it) is VOID
    assert judged(*left, ailing(seed=9, refused=50)) is VOID


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
def test_claims_without_their_runs_are_not_run(missing, keys):
    found = curves({name: scale for name, scale in AS_CLAIMED.items() if name != missing})
    assert {key for key, each in found.items() if each.verdict is ABSENT} == set(keys)
    assert all(any(missing in finding.words for finding in found[key].findings) for key in keys)


def test_memory_follows_from_the_settings():
    words = curves(AS_CLAIMED)["f"].findings[-1].words
    assert "NCG 1, KSD 21" in words
