"""Tuning on held-out cases, from seeds that no result uses: the grid, the split, the choice."""

import numpy as np
import pytest

from natgrad_paper.errors import UserError
from natgrad_paper.training import tune
from natgrad_paper.training.settings import build, changed, overrides
from training.tiny import SGD, Settings, problem

pytestmark = pytest.mark.usefixtures("fast_compile")


def trials(*combinations):
    return [(each, build(Settings, changed(Settings, overrides(each)), "--grid")) for each in combinations]


def test_combinations_are_all_of_them():
    found = tune.combinations(["adam.rate=0.1, 0.2", "adam.batch=10,20,30"])
    assert len(found) == 6
    assert found[0] == ("adam.rate=0.1", "adam.batch=10")
    assert found[-1] == ("adam.rate=0.2", "adam.batch=30")


@pytest.mark.parametrize("grid", ["adam.rate", "adam.rate=", "=1,2", "data.train=100,200", "model.units=3,4"])
def test_bad_grids_are_named(grid):
    with pytest.raises(UserError, match="--grid"):
        tune.combinations([grid])


@pytest.mark.parametrize("seed", [0, 1, 99])
def test_seeds_of_results_are_refused(seed):
    with pytest.raises(UserError, match=f"--seed: expected 100 or more, .* found {seed}"):
        list(tune.tune(problem(), SGD, trials(("sgd.rate=0.1",)), seed, "squared_error", lambda *_: None))


def test_held_out_cases_are_not_trained_on_and_the_test_is_not_touched():
    whole = problem().validated()
    assert (len(whole.train[0]), len(whole.valid[0])) == (54, 6)
    np.testing.assert_array_equal(np.concatenate([whole.train[0], whole.valid[0]]), problem().train[0])
    assert whole.data["train"] == [54, 3]
    spoiled = problem(test=(np.full((9, 3), np.nan, np.float32), np.zeros((9, 1), np.float32)))
    (found,) = tune.tune(spoiled, SGD, trials(("sgd.rate=0.1",)), 100, "squared_error", lambda *_: None)
    assert np.isfinite(found.validation)


def test_the_better_rate_is_found(tmp_path):
    seen = []
    given = trials(("sgd.rate=1e-9",), ("sgd.rate=0.1",), ("sgd.rate=1e20",))
    found = list(
        tune.tune(problem(), SGD, given, 100, "squared_error", lambda *event: seen.append(event[:2]))
    )
    assert [trial.changes for trial in found] == [changes for changes, _ in given]
    assert min(found, key=lambda trial: trial.rank).changes == ("sgd.rate=0.1",)
    assert found[2].rank == np.inf
    assert set(seen) == {(0, 3), (1, 3), (2, 3)}
    tune.write(tmp_path / "trials.csv", found)
    lines = (tmp_path / "trials.csv").read_text().splitlines()
    assert lines[0] == "changes,validation_error,training_error,iterations"
    assert len(lines) == 4


def test_own_validation_cases_are_used(tmp_path):
    inputs, targets = problem().train
    own = problem(valid=(inputs[:5], targets[:5] + 1000))
    (found,) = tune.tune(own, SGD, trials(("sgd.rate=1e-9",)), 100, "squared_error", lambda *_: None)
    assert found.validation > 1e5
    assert found.training < 1e3


def test_a_training_that_was_given_up_is_no_candidate():
    """Every step meets a NaN and is refused, so the first parameters stay, and their validation error is finite."""
    inputs, targets = problem().train
    stuck = problem(train=(inputs, np.full_like(targets, np.nan)), valid=(inputs[:5], targets[:5]))
    (found,) = tune.tune(stuck, SGD, trials(("sgd.rate=0.1",)), 100, "squared_error", lambda *_: None)
    assert np.isnan(found.validation)
    assert found.rank == np.inf


@pytest.mark.parametrize(
    ("best", "tried"),
    [(1.0, [0.5, 1, 2]), (8.0, [0.5, 1, 2, 4, 8, 16]), (0.1, [0.0625, 0.125, 0.25, 0.5, 1, 2])],
)
def test_rates_go_on_while_the_best_is_at_the_edge(best, tried):
    found = tune.around(1.0, 2.0, 4, lambda rate: abs(np.log(rate / best)))
    assert sorted(found) == tried
    assert found == {rate: abs(np.log(rate / best)) for rate in found}


def test_no_more_rates_than_allowed():
    assert sorted(tune.around(1.0, 2.0, 2, lambda rate: rate)) == [0.125, 0.25, 0.5, 1, 2]
