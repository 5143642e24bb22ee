"""The examples run, and show what they say."""

import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))  # for their helper
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_natural_gradient_leaves_a_plateau_on_which_gradient_descent_stalls(tmp_path):
    pytest.importorskip("matplotlib")
    left = load("plateau").main(out=tmp_path / "plateau.png", steps=40)
    assert left["natural gradient"] <= 12
    assert all(step is None for name, step in left.items() if name != "natural gradient")
    assert (tmp_path / "plateau.png").stat().st_size > 5_000


def test_a_small_net_solves_poissons_equation():
    """1e-5 in 20 to 106 steps for seeds 0 to 9 with 64 units; half of them suffice for less."""
    steps, _, error = load("poisson").main(goal=1e-4, hidden=32, most=300)
    assert error <= 1e-4
    assert steps < 300


def test_ten_spins_find_their_ground_state():
    """Stochastic reconfiguration: within 1e-2 in ten steps, 1e-4 in thirty (seed 100)."""
    found = load("ising").main(steps=15, hidden=10, goal=1e-2)
    assert found[-1] - load("ising").EXACT < 1e-2
    assert min(found) > load("ising").EXACT - 1e-9
