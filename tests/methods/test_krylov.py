"""Krylov Subspace Descent: the basis is a basis, the last step is in it, and a quadratic falls in one step."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from methods.quadratic import iterates, model, preconditioned_cg, quadratic
from natgrad.directions import Krylov
from natgrad.metric.here import Here, LastStep

pytestmark = pytest.mark.usefixtures("fast_compile")

PROBLEM = quadratic()


def operator(problem):
    return ng.metric_product(model, ng.Gaussian(), problem.start, problem.batch[0])


def basis(krylov: Krylov, last, dtype=jnp.float64):
    gradient = jnp.asarray(PROBLEM.gradient(np.asarray(PROBLEM.start)), dtype)
    problem = jax.tree.map(lambda leaf: leaf.astype(dtype), PROBLEM._replace(hessian=None, metric=None))
    last = LastStep(last.astype(dtype), None, None)
    here = Here(None, None, None, None, gradient=gradient, metric=operator(problem), last=last)
    vectors, products = krylov.basis(here, None)
    return vectors.leaves, products


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float64, 1e-12), (jnp.float32, 1e-5)])
def test_the_basis_is_orthonormal_spans_the_last_step_and_carries_the_metric(dtype, tolerance):
    last = jax.random.normal(jax.random.key(5), (7,))
    vectors, products = basis(Krylov(3), last, dtype)
    vectors = np.asarray(vectors, np.float64)
    assert vectors.shape == (4, 7)
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(4), atol=tolerance)
    scale = np.abs(PROBLEM.hessian).max()
    np.testing.assert_allclose(products, vectors @ PROBLEM.hessian @ vectors.T, atol=10 * tolerance * scale)
    inside = vectors.T @ (vectors @ np.asarray(last))
    np.testing.assert_allclose(inside, last, atol=10 * tolerance)


def test_the_basis_spans_the_krylov_space():
    vectors, _ = basis(Krylov(3, last_step=False), jnp.zeros(7))
    gradient = PROBLEM.gradient(np.asarray(PROBLEM.start))
    for power in range(3):
        vector = np.linalg.matrix_power(PROBLEM.hessian, power) @ gradient
        vector /= np.linalg.norm(vector)
        np.testing.assert_allclose(np.asarray(vectors).T @ (np.asarray(vectors) @ vector), vector, atol=1e-9)


def test_without_the_last_step_it_is_not_in_the_span():
    last = jax.random.normal(jax.random.key(5), (7,))
    vectors, _ = basis(Krylov(3, last_step=False), last)
    assert vectors.shape == (3, 7)
    outside = last - vectors.T @ (vectors @ last)
    assert np.linalg.norm(outside) > 0.1 * np.linalg.norm(last)


def test_a_vector_already_in_the_span_is_dropped():
    """Seven parameters, ten vectors asked for: seven rows live, the rest are 0, and nothing is NaN."""
    vectors, products = basis(Krylov(10), jnp.ones(7))
    lengths = np.linalg.norm(np.asarray(vectors), axis=1)
    assert np.sum(lengths > 0.5) == 7
    np.testing.assert_array_equal(lengths[lengths < 0.5], 0)
    assert np.all(np.isfinite(products))


def test_one_step_solves_a_quadratic_when_the_space_is_whole():
    opt = ng.krylov_subspace_descent(model, ng.Gaussian(), size=7, search=ng.search.SubspaceBFGS(maxiter=30))
    path = iterates(opt, PROBLEM, 1)
    np.testing.assert_allclose(path[-1], PROBLEM.minimum(), rtol=1e-5)


def test_defaults_work_with_fewer_parameters_than_vectors():
    path = iterates(ng.krylov_subspace_descent(model, ng.Gaussian()), PROBLEM, 2)
    np.testing.assert_allclose(path[-1], PROBLEM.minimum(), rtol=1e-5)


def test_a_space_of_the_gradient_and_the_last_step_is_conjugate_gradient():
    """k = 1: span{g, last step}, which is NCG with the identity for a metric, which is linear CG."""
    opt = ng.krylov_subspace_descent(model, ng.Gaussian(), size=1, search=ng.search.SubspaceBFGS(maxiter=20))
    path = iterates(opt, PROBLEM, 4)
    np.testing.assert_allclose(path, preconditioned_cg(PROBLEM, np.eye(7), 4), rtol=1e-4, atol=1e-6)


def test_the_last_step_helps():
    run = partial(iterates, problem=PROBLEM, steps=4)
    search = ng.search.SubspaceBFGS(maxiter=20)
    with_it = run(ng.krylov_subspace_descent(model, ng.Gaussian(), size=1, search=search))
    without = run(ng.krylov_subspace_descent(model, ng.Gaussian(), size=1, last_step=False, search=search))
    distance = lambda path: np.linalg.norm(path[-1] - PROBLEM.minimum())  # noqa: E731
    assert distance(with_it) < distance(without)


def test_floors_keep_a_singular_metric_harmless():
    x, t = PROBLEM.batch
    dead = (x.at[:, 0].set(0), t)
    opt = ng.krylov_subspace_descent(model, ng.Gaussian(), preconditioner=ng.Diagonal(1.0, floor=1e-4))
    params, state = PROBLEM.start, opt.init(PROBLEM.start)
    for _ in range(3):
        params, state, info = opt.step(params, state, dead)
        assert info.accepted or ng.Outcome.name_of(info.outcome) == "no decrease"
    assert np.all(np.isfinite(params))
    best = np.linalg.lstsq(np.asarray(dead[0])[:, 1:], np.asarray(t), rcond=None)[0]
    np.testing.assert_allclose(params[1:], best, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_root_is_that_of_a_floored_matrix(size):
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    values = size * np.array([2.0, 0.5, 1e-9])
    root = Krylov(floor=1e-2)._root(jnp.asarray((turn * values) @ turn.T))
    wanted = (turn * np.maximum(values, 2e-2 * size)) @ turn.T
    np.testing.assert_allclose(root @ root.T, wanted, rtol=1e-9, atol=1e-12 * size)


def test_a_metric_that_is_zero_leaves_the_basis_as_it_is():
    np.testing.assert_array_equal(Krylov()._root(jnp.zeros((3, 3))), np.eye(3))
