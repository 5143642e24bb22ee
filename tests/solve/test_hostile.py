"""No wrong claim with a preconditioner either, however bad: every claim is verified in float64 from A, b and x."""

from collections import Counter
from functools import cache

import jax
import numpy as np
import pytest
from hostile import MATRICES, PRECONDITIONERS, hostile, wrong

from natgrad.solve import CG, MINRES, MinresQLP, Reason

KINDS = {"cg": CG, "minres": MINRES, "minres-qlp": MinresQLP}
DTYPES = {np.float64: 1e-8, np.float32: 1e-4}


@cache
def compiled(name, size, rtol):
    solver = KINDS[name](5 * size, rtol)
    return jax.jit(jax.vmap(lambda A, b, M: solver(lambda v: A @ v, b, preconditioner=lambda r: M @ r)))


def tally(name, seed, size, count, dtype):
    """Return how many claims are wrong, and how often each reason was given."""
    systems, rtol = hostile(seed, size, count, dtype), DTYPES[dtype]
    solution = compiled(name, size, rtol)(systems.A, systems.b, systems.inverse)
    denied = wrong(systems, solution.x, solution.reason, rtol)
    for i in np.flatnonzero(denied):
        print(name, np.dtype(dtype), size, i, systems.kind[i], Reason.name_of(solution.reason[i]))
    return int(denied.sum()), Counter(Reason.name_of(reason) for reason in solution.reason)


@pytest.mark.usefixtures("fast_compile")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KINDS)
def test_sample(name, dtype):
    """84 systems for each solver in each precision: every matrix with every preconditioner, twice."""
    denied, reasons = tally(name, 0, 10, 84, dtype)
    assert denied == 0
    assert reasons["solved"] >= 8


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_ten_thousand(name):
    """With every solver."""
    denied, reasons = 0, Counter()
    for dtype in DTYPES:
        for size, count in ((4, 1260), (8, 1260), (16, 1260), (32, 1260)):
            more, given = tally(name, 1, size, count, dtype)
            denied, reasons = denied + more, reasons + given
    print(name, sum(reasons.values()), "systems,", denied, "wrong claims:", dict(reasons))
    assert sum(reasons.values()) >= 10_000
    assert denied == 0


def test_the_judge_catches_a_lie():
    systems = hostile(0, 10, 84, np.float64)
    lie = np.full(84, Reason.SOLVED)
    assert wrong(systems, np.zeros_like(systems.b), lie, 1e-8).all()
    assert set(systems.kind) == {f"{matrix} {name}" for matrix in MATRICES for name in PRECONDITIONERS}
