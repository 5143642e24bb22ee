"""Tuning on held-out cases: the grid, the split, the choice."""

import numpy as np
import pytest
from typer.testing import CliRunner

from natgrad_paper import cache, cli, experiments, tune
from natgrad_paper.errors import UserError

pytestmark = pytest.mark.usefixtures("fast_compile")


def test_combinations_are_all_of_them():
    found = tune.combinations(["adam.rate=0.1, 0.2", "adam.batch=10,20,30"])
    assert len(found) == 6
    assert found[0] == ("adam.rate=0.1", "adam.batch=10")
    assert found[-1] == ("adam.rate=0.2", "adam.batch=30")


@pytest.mark.parametrize("grid", ["adam.rate", "adam.rate=", "=1,2", "data.train=100,200"])
def test_bad_grids_are_named(grid):
    with pytest.raises(UserError, match="--grid"):
        tune.combinations([grid])


def test_held_out_cases_are_not_trained_on():
    problem = tune.held_out(_problem())
    assert len(problem.train[0]) == 180
    assert len(problem.test[0]) == 20
    whole = np.concatenate([problem.train[0], problem.test[0]])
    np.testing.assert_array_equal(whole, _problem().train[0])


def _problem():
    from natgrad_paper import config

    experiment = experiments.load("curves")
    return experiment.prepare(config.load(experiment.config, experiment.presets()["smoke"]), None)


def test_the_command_finds_the_better_rate(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "enable", lambda: None)
    out = tmp_path / "trials.csv"
    arguments = [
        "tune",
        "curves",
        "sgd",
        "--grid",
        "sgd.rate=1e-9,1e-3",
        "--preset",
        "smoke",
        "--out",
        str(out),
    ]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    assert result.output.strip().endswith("Best: --set sgd.rate=1e-3")
    assert len(out.read_text().splitlines()) == 3
    result = CliRunner().invoke(cli.app, ["tune", "curves", "sdg", "--grid", "sgd.rate=1"])
    assert result.exit_code == 2
    assert "method: expected 'sgd', found 'sdg'" in result.output
