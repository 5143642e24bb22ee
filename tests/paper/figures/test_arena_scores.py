"""The arena's numbers: the profile score, times to targets, failures, places; from logs written by hand."""

import math

import numpy as np
import pytest
from synthetic import REFUSED, run_log

import natgrad as ng
from natgrad_paper.figures.arena import claims, contests, panels, scores
from natgrad_paper.report.claims import Verdict, judge
from natgrad_paper.report.load import Runs

INF = math.inf
BAD = f"10 steps in a row refused: {ng.Outcome.name_of(ng.Outcome.NONFINITE_GRADIENT)}"


def test_a_score_by_hand():
    """On p, b takes twice as long as a; on q, b alone arrives; on r, it takes more than four times; s is for nobody."""
    times = {
        "p": {"a": 1.0, "b": 2.0},
        "q": {"a": INF, "b": 3.0},
        "r": {"a": 1.0, "b": 5.0},
        "s": {"a": INF, "b": INF},
    }
    assert scores.slowdowns(times, ["a", "b"]) == {"a": [1, INF, 1, INF], "b": [2, 1, 5, INF]}
    found = scores.scores(times, ["a", "b"])
    assert found["a"] == pytest.approx(2 / 4)
    assert found["b"] == pytest.approx((2 / 3 + 1 + 0) / 4)
    assert [scores.profile([2, 1, 5, INF], tau) for tau in (1, 2, 4)] == [1 / 4, 2 / 4, 2 / 4]
    assert scores.scores({}, ["a"]) == {}


@pytest.mark.parametrize("seed", range(5))
def test_a_score_is_the_area_below_the_profile(seed):
    """Against the integral as AlgoPerf takes it: the profile on a fine grid, added up."""
    rng = np.random.default_rng(seed)
    names, problems = ["a", "b", "c"], range(7)
    times = {
        str(p): {n: float(rng.lognormal()) if rng.random() < 0.8 else INF for n in names} for p in problems
    }
    taus = np.linspace(1, scores.MOST, 60_001)
    for name, found in scores.slowdowns(times, names).items():
        area = np.trapezoid([scores.profile(found, tau) for tau in taus[::20]], taus[::20]) / 3
        assert scores.scores(times, names)[name] == pytest.approx(area, abs=2e-3)


@pytest.mark.parametrize(
    ("times", "middle"),
    [([3, 1, 2], 2), ([1, 3], 2), ([1, INF], INF), ([1, 2, INF], 2), ([INF, 1, INF], INF), ([5], 5)],
)
def test_the_median_waits_for_half_of_the_seeds(times, middle):
    assert scores.median(times) == middle


def training(
    method, problem, errors, seed=0, target=1.0, scale="log", variant="plain", end="finished", order=1
):
    """Return a log with errors at 0, 2, 4, … seconds, and three seconds of compiling."""
    name = problem if variant == "plain" else f"{problem}-{variant}"
    found = run_log(
        method, seed, errors=errors, training=name, settings={"problems": ["q", "p"]}, order=order, end=end
    )
    facts = {"problem": problem, "variant": variant, "target": target, "scale": scale, "error": "nats"}
    found.header["training"] |= {**facts, "data": {"name": "drawn", "sha256": "d" * 64}}
    for record in found.evaluations:
        record["error"] = record.pop("squared_error")
        record["test_error"] = record["error"]
        record["compile_seconds"] = 3.0 if seed == 0 else 0.0
    return found


FAST, SLOW, LAZY = (9.0, 0.5, 0.4, 0.3), (9.0, 8.0, 7.0, 0.5), (9.0, 8.0, 7.0, 6.0)


def runs(seeds=3, kncg=FAST, adamw=SLOW, **rest):
    logs = []
    for seed in range(seeds):
        for problem in ("p", "q"):
            logs.append(training("kncg", problem, kncg, seed, order=0, **rest))
            logs.append(training("adamw", problem, adamw, seed, order=1, **rest))
    return Runs.of(logs)


def test_problems_come_in_the_order_of_the_settings():
    assert [each.problem for each in contests.contests(runs())] == ["q", "p"]


def test_times_to_the_target_with_and_without_compiling():
    contest = contests.contests(runs())[0]
    assert contest.times("kncg") == {0: 2.0, 1: 2.0, 2: 2.0}
    assert contest.times("kncg", compiling=True) == {0: 5.0, 1: 5.0, 2: 5.0}
    assert all(4 < time <= 6 for time in contest.times("adamw").values())
    assert contests.contests(runs(adamw=LAZY))[0].times("adamw") == {0: INF, 1: INF, 2: INF}


def test_negative_errors_have_times_too():
    """An error that may be negative is interpolated as it is: logarithms would lose it."""
    found = runs(kncg=(2.0, -1.0, -3.0, -4.0), adamw=(2.0, 1.0, 0.5, 0.0), target=-2.0, scale="linear")
    contest = contests.contests(found)[0]
    time = contest.times("kncg")[0]
    assert time == 4.0  # Evaluations at 2 s and 4 s are far apart: the later one counts.
    assert contest.times("adamw")[0] == INF
    assert contest.ends("kncg", contest.measure) == {0: -4.0, 1: -4.0, 2: -4.0}


def test_an_error_of_zero_is_the_best_there_is():
    contest = contests.contests(runs(kncg=(9.0, 2.0, 0.0)))[0]
    assert contest.times("kncg")[0] <= 4.0
    assert contest.ends("kncg", contest.measure)[0] == contests.LEAST
    assert contest.failures("kncg") == []


def test_failures_are_nan_or_missed():
    logs = [
        training("kncg", "p", FAST, 0),
        training("kncg", "p", (9.0, 9.0), 1, end=BAD),
        training("kncg", "p", (9.0, 8.0, None), 2),
        training("kncg", "p", LAZY, 3),
    ]
    contest = contests.contests(Runs.of(logs))[0]
    assert contest.failures("kncg") == ["NaN", "NaN", "missed"]
    assert panels.failed(contest, "kncg") == "NaN"
    without = [training("kncg", "p", LAZY, target=None)]
    assert contests.contests(Runs.of(without))[0].failures("kncg") == []


def test_places_count_from_the_least_error():
    logs = [
        training("kncg", "p", (9.0, 1.0)),
        training("adamw", "p", (9.0, 3.0), order=2),
        training("dowg", "p", (9.0, 3.0), order=3),
        training("muon", "p", (9.0, None), order=4),
    ]
    contest = contests.contests(Runs.of(logs))[0]
    assert contest.ranks(["kncg", "adamw", "dowg", "muon"], 0) == {
        "kncg": 1,
        "adamw": 2.5,
        "dowg": 2.5,
        "muon": 4,
    }


def verdicts(found):
    return {each.claim.key: each.verdict for each in judge(claims.CLAIMS, found)}


def test_claims_are_judged():
    assert verdicts(runs()) == {"a": Verdict.HOLDS, "b": Verdict.HOLDS, "c": Verdict.ABSENT}
    assert verdicts(runs(kncg=SLOW, adamw=FAST))["a"] is Verdict.FAILS
    assert verdicts(runs(kncg=LAZY))["b"] is Verdict.FAILS
    assert verdicts(runs(target=None)) == {"a": Verdict.OPEN, "b": Verdict.OPEN, "c": Verdict.ABSENT}
    assert verdicts(runs(seeds=2))["b"] is Verdict.OPEN


def test_what_was_cut_off_is_not_judged():
    """A training that somebody stopped has failed at nothing, and a seed without it is compared with nobody."""
    whole = runs(seeds=4)
    stopped = [log for log in whole.logs if (log.method, log.seed, log.training) != ("kncg", 3, "p")]
    cut = Runs.of([*stopped, training("kncg", "p", LAZY[:2], 3, order=0, end="interrupted")])
    assert verdicts(cut) == verdicts(whole)
    contest = next(each for each in contests.contests(cut) if each.problem == "p")
    assert contest.seeds(["kncg", "adamw"]) == {0, 1, 2}
    assert list(contest.times("kncg")) == list(contest.ends("kncg", contest.measure)) == [0, 1, 2]
    alone = Runs.of([training("kncg", "p", LAZY[:2], end="interrupted"), training("adamw", "p", SLOW)])
    (contest,) = contests.contests(alone)
    assert panels.time_cell(contest, "kncg", False) == "cut off"
    assert verdicts(alone)["b"] is Verdict.ABSENT
    assert panels.one(contest)


def refusing(found):
    """Return runs in which KNCG refuses half of its steps."""
    for log in found.logs:
        for record in log.evaluations if log.method == "kncg" else ():
            record["refused"] = record["iteration"] // 2
    return found


def test_a_refused_step_is_the_methods_own_affair():
    assert verdicts(refusing(runs())) == verdicts(runs())


@pytest.mark.parametrize("end", [BAD, REFUSED])
def test_a_failure_is_evidence(end):
    """Also that of a method that refused most of its steps until it was given up."""
    logs = [
        training("kncg", problem, (9.0, 8.0), seed, order=0, end=end) for problem in "pq" for seed in range(3)
    ]
    logs += [log for log in runs().logs if log.method == "adamw"]
    found = verdicts(refusing(Runs.of(logs)))
    assert (found["a"], found["b"]) == (Verdict.FAILS, Verdict.FAILS)


def test_scores_are_by_the_clock():
    found = runs()
    for log in found.logs:
        log.header["settings"]["budget"] = {"iterations": 5}
    assert verdicts(found)["a"] is Verdict.ABSENT


def test_a_method_that_loses_its_place_fails():
    logs = list(runs().logs)
    for seed in range(3):
        logs += [
            training("kncg", "p", LAZY, seed, variant="inputs", order=0, target=None),
            training("adamw", "p", SLOW, seed, variant="inputs", order=1, target=None),
        ]
    found = Runs.of(logs)
    assert claims.shifts(found, "kncg", "inputs").tolist() == [1, 1, 1]
    assert claims.shifts(found, "adamw", "inputs").tolist() == [-1, -1, -1]
    assert len(claims.shifts(found, "kncg", "batch")) == 0
    assert verdicts(found)["c"] is Verdict.FAILS
    (table,) = panels.sensitivity(found)
    assert list(table.head) == ["method", "before (1 problems)", "input columns × powers of ten"]
    assert [list(row) for row in table.rows] == [["KNCG", "1.00", "2.00"], ["ADAMW", "2.00", "1.00"]]


def test_tables_say_who_failed_and_what_is_missing():
    found = runs(adamw=LAZY)
    (table, _) = panels.standing(found, contests.contests(found))
    rows = {row[0]: list(row[1:]) for row in table.rows}
    assert rows["KNCG"] == ["1.00", "1.000", "1.000", "2 of 2", "0", "0 of 2"]
    assert rows["ADAMW"] == ["2.00", "0.000", "0.000", "0 of 2", "2", "0 of 2"]
    cell = panels.time_cell(contests.contests(found)[0], "adamw", False)
    assert (cell.text, cell.note) == ("missed", "0 of 3")
    bare = runs(target=None)
    words, table = panels.standing(bare, contests.contests(bare))
    assert "no target yet" in words.text
    assert [list(row[2:]) for row in table.rows] == [["–", "–", "–", "–", "0 of 2"]] * 2
    assert panels.time_cell(contests.contests(bare)[0], "kncg", False) == "no target yet"
    assert panels.time_cell(contests.contests(bare)[0], "muon", False) == "not run"
