"""A solver called without `jit`: one compilation per operator, and never a stale one."""

import gc
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

from natgrad.solve import CG, MINRES, MinresQLP, Reason, TruncatedCG

pytestmark = pytest.mark.usefixtures("fast_compile")

D, B = jnp.linspace(1, 3, 6), jnp.ones(6)
SOLVERS = (CG(), MINRES(), MinresQLP(), TruncatedCG(12))
by_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)


@by_solver
def test_the_second_call_compiles_nothing(solver, compilations):
    def matvec(v):
        return D * v

    def halves(r):
        return r / 2

    for options in ({}, {"preconditioner": halves, "shift": 0.1, "x0": B}):
        first = solver(matvec, B, **options)
        with compilations() as count:
            second = solver(matvec, B, **options)
            solver(matvec, D, **options)
            type(solver)(*vars(solver).values())(matvec, B, **options)
            assert count() == 0
        np.testing.assert_array_equal(second.x, first.x)


class Diagonal:
    def __init__(self, d):
        self.d = d

    def __call__(self, v):
        return self.d * v


def test_an_operator_that_changed_is_not_remembered():
    d = D

    def matvec(v):
        return d * v

    operator = Diagonal(d)
    for scale in (1.0, 2.0, 4.0):
        d = operator.d = scale * D
        for product in (matvec, operator):
            np.testing.assert_allclose(CG()(product, B).x, B / d, rtol=1e-3)


def test_a_preconditioner_that_changed_is_not_remembered():
    def matvec(v):
        return D * v

    inverse = Diagonal(1 / D)
    assert Reason.name_of(CG()(matvec, B, preconditioner=inverse).reason) == "solved"
    inverse.d = -1 / D
    assert Reason.name_of(CG()(matvec, B, preconditioner=inverse).reason) == "indefinite"


def test_nothing_outlives_its_operator():
    operator = Diagonal(D)
    CG()(operator, B)
    gone = weakref.ref(operator)
    del operator
    gc.collect()
    assert gone() is None


class Unhashable(Diagonal):
    __hash__ = None


def test_an_operator_without_a_hash_is_taken_too():
    np.testing.assert_allclose(CG()(Unhashable(D), B).x, B / D, rtol=1e-3)


@by_solver
@pytest.mark.parametrize("b", [jnp.ones(6, complex), jnp.arange(6)], ids=["complex", "integer"])
def test_other_numbers_than_real_ones_are_refused(solver, b):
    with pytest.raises(TypeError, match="real floating numbers"):
        solver(lambda v: D * v, b)
