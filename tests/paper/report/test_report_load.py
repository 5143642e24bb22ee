"""Logs as runs: tidy tables for a notebook, and a refusal in one line of what does not belong together."""

import re

import numpy as np
import pytest
import synthetic
from synthetic import run_log, runs

import natgrad_paper
from natgrad_paper.errors import UserError
from natgrad_paper.report import load


def test_methods_keep_the_order_of_the_experiment_and_seeds_theirs():
    found = runs(run_log("ngd", seed=1), run_log("sgd", order=0), run_log("ngd", seed=0))
    assert found.methods == ("sgd", "ngd")
    assert found.seeds == (0, 1)
    assert [log.seed for log in found.method("ngd")] == [0, 1]
    assert found.method("adam") == ()
    assert found.label("adam") == "adam"
    assert found.label("ngd") == "NGD"


def test_named_trainings_are_apart():
    logs = [
        run_log(training=name, seed=seed) for name in ("", "segment-01-1", "segment-01-2") for seed in (0, 1)
    ]
    found = runs(*logs)
    assert [(log.seed, log.training) for log in found.method("ngd")] == [(0, ""), (1, "")]
    assert [log.seed for log in found.method("ngd", "segment-01-2")] == [0, 1]
    assert len(found.trainings("ngd")) == 6
    assert [log.training for log in found.trainings("ngd", 1)] == ["", "segment-01-1", "segment-01-2"]


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (
            {},
            {"sha": "b" * 64},
            "logs: expected one data set, found 2: Curves (regenerated) aaaaaaaa, Curves",
        ),
        (
            {"settings": {"ngd": {"rate": 1.0, "batch": 500}}},
            {"settings": {"ngd": {"rate": 0.5, "batch": 500}}},
            "logs: expected the same settings in all runs of ngd, found ngd.rate = 1.0 (seed 0) and 0.5 (seed 1)",
        ),
        ({"settings": {"a": 1}}, {"settings": {}}, "found a = 1 (seed 0) and None (seed 1)"),
        ({"seed": 1}, {}, "logs: expected one of ngd, seed 1, found several"),
    ],
)
def test_logs_that_do_not_belong_together_are_refused_in_one_line(one, other, words):
    with pytest.raises(UserError, match=re.escape(words)) as refusal:
        runs(run_log(**{"seed": 0} | one), run_log(**{"seed": 1} | other))
    assert "\n" not in str(refusal.value)


def test_experiments_do_not_mix_and_methods_have_their_own_settings():
    other = run_log(seed=1)
    other.header["experiment"] = "order"
    with pytest.raises(UserError, match="expected one experiment, found 2: curves, order"):
        runs(run_log(), other)
    assert runs(run_log(settings={"a": 1}), run_log("sgd", settings={"a": 2}, order=0)).seeds == (0,)


def test_seeds_for_choosing_settings_are_left_out_of_everything_but_their_own_run():
    logs = [run_log(seed=seed, settings={"rate": seed}) for seed in (100, 101)]
    found = runs(run_log(seed=3), *logs)  # whose settings may differ: they were being chosen
    assert found.seeds == (3,)
    assert found.left_out == (100, 101)
    assert found.judged
    assert set(found.evaluations["seed"]) == {3}
    alone = runs(logs[0])
    assert alone.seeds == (100,)
    assert not alone.judged
    assert alone.left_out == ()


def test_tables_are_tidy(tmp_path):
    measure = {"name": "segment-03", "variance": 0.5, "segment": 3}
    logs = [run_log(seed=seed, steps=synthetic.steps(4), measures=(measure,)) for seed in (0, 1)]
    directory = synthetic.write([*logs, run_log("sgd", order=0, end=None)], tmp_path)
    evaluations = natgrad_paper.load(directory)
    assert list(evaluations)[:5] == ["method", "seed", "training", "iteration", "refused"]
    assert len(evaluations) == 9
    assert evaluations.groupby("method")["squared_error"].last().to_dict() == {"ngd": 2.0, "sgd": 2.0}
    assert len(natgrad_paper.load(str(directory), "steps")) == 8
    assert natgrad_paper.load(directory, "measures")[
        ["method", "seed", "segment", "variance"]
    ].values.tolist() == [
        ["ngd", 0, 3, 0.5],
        ["ngd", 1, 3, 0.5],
    ]
    table = natgrad_paper.load(directory, "runs")
    assert list(table["status"].fillna("cut")) == ["cut", "finished", "finished"]
    assert list(table["settings.ksd.size"]) == [20, 20, 20]
    assert set(table["commit.clean"]) == {True}
    with pytest.raises(UserError, match="expected one of runs, evaluations, steps, measures, found 'step'"):
        natgrad_paper.load(directory, "step")


def test_empty_tables_have_their_first_columns():
    assert list(runs(run_log(errors=())).evaluations) == ["method", "seed", "training"]
    assert len(runs(run_log()).measures) == 0


def test_settings_by_dotted_names():
    assert load.flat({"a": {"b": 1, "c": {"d": [1, 2]}}, "e": None}) == {"a.b": 1, "a.c.d": [1, 2], "e": None}


def test_a_color_is_six_digits_or_gray():
    log = run_log()
    log.header["method"]["color"] = "red;}body{background:url(x)"
    assert runs(log).color("ngd") == "#808080"
    assert runs(run_log(order=1)).color("ngd") == "#0072b2"


def test_numbers_that_are_missing_are_so_in_a_table():
    table = runs(run_log(errors=(8.0, None))).evaluations
    assert np.isnan(table["squared_error"].iloc[1])
