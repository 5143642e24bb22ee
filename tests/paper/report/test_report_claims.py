"""Verdicts on logs written by hand: each is reachable, and follows from the numbers and their spread."""

import math

import numpy as np
import pytest
from synthetic import run_log, runs

from natgrad_paper.report.claims import (
    Below,
    BestBelow,
    Claim,
    Finding,
    Judged,
    Reliable,
    Verdict,
    judge,
    lede,
    together,
    verdict_on,
)
from natgrad_paper.report.views import LINEAR, RECONSTRUCTION, Measure, Panel

HOLDS, FAILS, OPEN, EQUAL, VOID, ABSENT = Verdict


def level(log, plateau=100.0):
    """Return the log, with an error of the best constant answer."""
    log.header["plateau"] = {"squared_error": plateau}
    return log


def pairs(scales, **rest):
    """Return runs of `a` that are so many times as bad as those of `b` from the same seed, on top of a spread
    between seeds that pairing has to remove."""
    return runs(
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


def test_the_clock_decides_nothing_where_the_budget_is_in_iterations():
    shared = {"budget": {"iterations": 100, "seconds": None}}
    found = runs(
        *(
            level(run_log(name, seed, 1.0 + k, settings=shared))
            for k, name in enumerate("ab")
            for seed in range(3)
        )
    )
    assert [finding.verdict for finding in Below("a", "b")(found)] == [HOLDS]
    assert [finding.verdict for finding in BestBelow(("a",), "b")(found)] == [ABSENT]


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
    for finding in Below("a", "b")(runs(*logs)):
        assert finding.verdict is OPEN
        assert "whether either left the plateau, the logs do not say" in finding.words


def test_axes_are_judged_apart():
    # b takes half as long again for the same errors: lower at equal time, equal at equal iterations.
    errors = [8.0 / 2**k for k in range(8)]

    def slow(seed):
        found = run_log("b", seed, errors=errors)
        for record in found.evaluations:
            record["training_seconds"] *= 1.5 + 0.1 * seed
        return found

    logs = [run_log("a", seed, order=0, errors=errors) for seed in range(3)] + [
        slow(seed) for seed in range(3)
    ]
    found = runs(*map(level, logs))
    assert [finding.verdict for finding in Below("a", "b")(found)] == [EQUAL, HOLDS]


def test_missing_methods_are_not_run_and_unpaired_seeds_not_decided():
    found = runs(run_log("a", 0), run_log("b", 1, order=2))
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
    assert "3 seeds" in (found := Below("a", "b")(runs(*good, *better, cut))[0]).words
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
    found = runs(*sound, ailing(**ail), *others)
    for finding in (*Below("a", "b")(found), *Below("b", "a")(found), *BestBelow(("a",), "b")(found)):
        if cause is None:
            assert finding.verdict in (HOLDS, FAILS)
        else:
            assert finding.verdict is VOID
            assert cause in finding.words
            assert "A, seed 1" in finding.words


def test_void_says_how_many_runs_are_like_it():
    found = runs(*(ailing(seed=seed, refused=50) for seed in range(3)), *(run_log("b", s) for s in range(3)))
    assert Below("a", "b")(found)[0].words.endswith(
        "void: A, seed 0: 50 of 100 steps refused; 2 more runs like it"
    )


def test_the_best_is_picked_among_sound_runs():
    found = runs(
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
        found = Below("a", "b")(runs(*logs))
        assert [finding.verdict for finding in found] == [verdict] * 2, plateau
        assert ("nobody has left the plateau" in found[0].words) == (verdict is VOID)
    one = [level(run_log("a", s, 0.1 + s / 1000)) for s in range(3)]
    one += [level(run_log("b", s, 2.0)) for s in range(3)]
    assert Below("a", "b")(runs(*one))[0].verdict is HOLDS  # one of the two is enough


def test_what_was_not_measured_is_not_compared():
    """One method is looked at after 10 steps, the other gets no further than 5."""
    short = [run_log("a", seed, order=0) for seed in range(3)]
    for log in short:
        for record, iteration in zip(log.evaluations, (0, 3, 5), strict=True):
            record["iteration"] = iteration
    found = Below("a", "b", RECONSTRUCTION.panels[:1])(
        runs(*short, *(run_log("b", s, order=2) for s in range(3)))
    )
    assert found[0].words == "A / B at 5 iterations: not measured there"
    assert found[0].verdict is OPEN


def test_a_run_first_evaluated_at_60_is_not_compared_at_18():
    """Three ticks of a report rested on a straight line from the start to step 60, wrong by a factor of ten."""

    def at(log, *iterations):
        for record, iteration in zip(log.evaluations, iterations, strict=True):
            record["iteration"] = iteration
        return log

    natural = [at(run_log("ngd-l", seed, order=0), 0, 9, 18) for seed in range(5)]
    plain = [at(run_log("sgd", seed, errors=(265.6, 12.57, 12.5)), 0, 60, 80) for seed in range(5)]
    iterations, _ = Below("ngd-l", "sgd")(runs(*natural, *plain))
    assert iterations.words == "NGD-L / SGD at 18 iterations: not measured there"
    assert iterations.verdict is OPEN


def test_a_claim_may_say_what_effect_is_the_smallest_that_counts():
    logs = pairs((0.93, 0.94, 0.95))
    assert Below("a", "b")(logs)[0].verdict is HOLDS
    (iterations, seconds) = Below("a", "b", smallest=0.15)(logs)
    assert iterations.verdict is seconds.verdict is EQUAL
    assert iterations.words.endswith("no difference beyond 15%")
    (judged,) = judge([Claim("x", "", "", (Below("a", "b", smallest=0.15),))], logs)
    assert judged.words == "no difference beyond 15%"
    assert BestBelow(("a",), "b", smallest=0.15)(logs)[0].verdict is EQUAL


def test_seeds_for_choosing_settings_are_never_judged():
    logs = [
        run_log(name, seed, scale) for name, scale in (("a", 0.5), ("b", 1.0)) for seed in (0, 1, 100, 101)
    ]
    assert Below("a", "b")(runs(*logs))[0].words.endswith("(2 seeds, too few)")
    assert runs(*logs).left_out == (100, 101)
    chosen = runs(*(log for log in logs if log.seed >= 100))
    (judged,) = judge([Claim("x", "", "", (Below("a", "b"),))], chosen)
    assert judged.verdict is ABSENT
    assert "seeds for choosing settings" in judged.findings[0].words


def test_a_run_that_its_patience_ended_is_evidence():
    early = [run_log("a", seed, 0.5 + seed / 100, "early", errors=(8.0, 4.0, 2.0)) for seed in range(3)]
    longer = [run_log("b", seed, errors=(8.0, 4.0, 2.0, 2.0)) for seed in range(3)]
    (found, _) = Below("a", "b")(runs(*early, *longer))
    assert found.verdict is HOLDS
    assert "at 1 000 iterations" in found.words
    assert Reliable("a")(runs(*early))[0].verdict is HOLDS


def test_an_error_that_is_not_finite_counts_as_that_of_the_start():
    diverged = [run_log("a", seed, order=0, errors=(8.0, 4.0, None)) for seed in range(3)]
    found = Below("a", "b", RECONSTRUCTION.panels[:1])(
        runs(*diverged, *(run_log("b", seed) for seed in range(3)))
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

    logs = [counted("a", seed, share) for seed, share in enumerate((0.0, 0.2, 0.1))]
    logs += [counted("b", seed, share) for seed, share in enumerate((0.04, 0.25, 0.16))]
    (found,) = Below("a", "b", (panel,))(runs(*logs))
    assert found.words == "A − B, test error, % at 100 iterations: −5 (−7.48 to −2.52, 3 seeds)"
    assert found.verdict is HOLDS
    assert Below("b", "a", (panel,))(runs(*logs))[0].verdict is FAILS


def test_conjunction():
    assert together([HOLDS, HOLDS]) is HOLDS
    assert together([HOLDS, OPEN]) is OPEN
    assert together([HOLDS, OPEN, FAILS]) is FAILS
    assert together([]) is OPEN
    assert together([HOLDS, ABSENT, OPEN]) is ABSENT
    assert together([HOLDS, VOID, ABSENT, OPEN]) is VOID
    assert together([EQUAL, VOID]) is EQUAL
    assert together([EQUAL, FAILS]) is FAILS
    (judged,) = judge([Claim("x", "", "", (Below("a", "b"),))], pairs((0.5, 0.6, 0.55)))
    assert judged.verdict is HOLDS


def test_the_verdicts_in_a_sentence():
    words = lede([HOLDS, HOLDS, FAILS, EQUAL, VOID, ABSENT, OPEN])
    assert words == (
        "On this evidence 2 of 7 claims hold, 1 does not, 1 shows no difference, 1 is void, 1 was not run, "
        "and 1 is not decided."
    )
    assert Judged(Claim("x", "", "", ()), (Finding("", HOLDS), Finding("", FAILS))).words == "does not hold"


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
    assert Reliable("a")(runs(*logs))[0].verdict is verdict
    assert Reliable("b")(runs(*logs))[0].verdict is ABSENT


def test_a_run_on_the_plateau_has_not_learned_and_an_ailing_one_is_no_evidence():
    def judged(*logs):
        return Reliable("a")(runs(*logs))[0].verdict

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
    (found,) = BestBelow(("x", "y", "z"), "adam")(runs(*logs))
    assert found.verdict is HOLDS
    assert found.words.startswith("Y / ADAM at 4 s")
    assert BestBelow(("x",), "nesterov")(runs(*logs))[0].words == "no runs of nesterov"
    assert BestBelow(("q", "r"), "adam")(runs(*logs))[0].words == "no runs of q or r"


def test_best_names_the_methods_that_are_no_candidates():
    others = [run_log("adam", seed) for seed in range(3)]
    cut = [run_log(name, 0, end=None) for name in ("x", "y")]
    (found,) = BestBelow(("x", "y", "z"), "adam")(runs(*cut, *others))
    assert (found.words, found.verdict) == ("no whole runs of X or Y", OPEN)
    (found,) = BestBelow(("a", "z"), "adam")(runs(ailing("a", 0, refused=50), *others))
    assert (found.words, found.verdict) == ("no sound runs of A: A, seed 0: 50 of 100 steps refused", VOID)
