"""The benchmark of classic least-squares problems: its data are NIST's, and nobody finds a lower minimum."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parent.parent / "benchmarks" / "least_squares.py"


@pytest.fixture(scope="module")
def classics():
    spec = importlib.util.spec_from_file_location("least_squares", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_problem_has_its_known_minimum(classics):
    """From the near starts, MINPACK finds the certified sums to seven digits: the data have no slip."""
    for name in classics.NIST:
        problem = classics.PROBLEMS[f"{name}, near"]
        found = np.sum(np.asarray(problem.residuals(classics.scipys(problem)())) ** 2)
        np.testing.assert_allclose(found, problem.least, rtol=1e-7, err_msg=name)


def test_ours_is_never_worse_on_a_few(classics, capsys):
    lost = classics.main(("Rosenbrock", "Brown–Dennis"), ["natgrad", "scipy"])
    assert lost["natgrad"] == 0
    assert "| Rosenbrock | 0 | 0 | 0 |" in capsys.readouterr().out


def test_worse_means_beyond_rounding(classics):
    assert classics.worse(1.1, 1.0)
    assert classics.worse(float("nan"), 1.0)
    assert not classics.worse(1 + 1e-9, 1.0)
    assert not classics.worse(1e-25, 1e-30)
