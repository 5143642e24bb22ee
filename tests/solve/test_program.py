"""A solver called without `jit`: one compilation per operator, and never a stale one."""

import gc
import weakref
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
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


def test_the_second_direct_solve_compiles_nothing(compilations):
    x, weights = jnp.linspace(-1, 1, 12).reshape(6, 2), jnp.ones((2, 3))
    operator = ng.metric_product(lambda p, x: jnp.tanh(x @ p), ng.Gaussian(), weights, x)
    double = 2 * weights
    first = ng.Direct()(operator, weights, 0.1)
    with compilations() as count:
        second = ng.Direct()(operator, weights, 0.1)
        other = ng.Direct()(operator, double, 0.2)
        assert count() == 0
    np.testing.assert_array_equal(second.x, first.x)
    np.testing.assert_allclose(operator(other.x) + 0.2 * other.x, double, rtol=1e-9)


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
    method, part = operator.__call__, partial(matvec)
    for scale in (1.0, 2.0, 4.0):
        d = operator.d = scale * D
        for product in (matvec, operator, method, part):
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
    operator.itself = operator
    inverse = Diagonal(1 / D)
    inverse.of = operator
    CG()(operator, B, preconditioner=inverse)
    gone = [weakref.ref(operator), weakref.ref(inverse)]
    del operator, inverse
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_a_product_that_sees_tracers_is_used_in_its_trace_alone():
    def matvec(v):
        return scale * v

    found = []
    for value in (2.0, 4.0):

        @jax.jit
        def run(t):
            nonlocal scale
            scale = t * D
            return CG()(matvec, B).x

        found.append(run(value))
        np.testing.assert_allclose(found[-1], B / (value * D), rtol=1e-3)
    scale = D
    np.testing.assert_allclose(CG()(matvec, B).x, B / D, rtol=1e-3)


@by_solver
def test_numbers_may_be_traced(solver, compilations):
    """No Python branch depends on a float; a tolerance of 0 still means exactly maxiter iterations."""
    names = [name for name in ("rtol", "progress", "maxxnorm") if hasattr(solver, name)]
    run = jax.jit(
        lambda *numbers: replace(solver, **dict(zip(names, numbers, strict=True)))(lambda v: D * v, B)
    )
    values = {"rtol": 1e-6, "progress": 1e-3, "maxxnorm": 1e3}
    numbers = [values[name] for name in names]
    expected = replace(solver, **{name: values[name] for name in names})(lambda v: D * v, B)
    traced = run(*numbers)
    assert (traced.iterations, traced.reason) == (expected.iterations, expected.reason)
    np.testing.assert_allclose(traced.x, expected.x, rtol=1e-12)
    with compilations() as count:
        nothing = run(*(0.0 if name != "maxxnorm" else 1e3 for name in names))
        assert count() == 0
    if isinstance(solver, CG):
        assert nothing.iterations == solver.maxiter


class Unhashable(Diagonal):
    __hash__ = None


def test_an_operator_without_a_hash_is_taken_too():
    np.testing.assert_allclose(CG()(Unhashable(D), B).x, B / D, rtol=1e-3)


@by_solver
@pytest.mark.parametrize("b", [jnp.ones(6, complex), jnp.arange(6)], ids=["complex", "integer"])
def test_other_numbers_than_real_ones_are_refused(solver, b):
    with pytest.raises(TypeError, match="real floating numbers"):
        solver(lambda v: D * v, b)
