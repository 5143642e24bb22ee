"""The l2 penalty, on all parameters and on chosen ones, against the dense formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.flatten_util import ravel_pytree
from models import MODELS, targets_for

import natgrad as ng

CASE = MODELS["mlp"]
FLAT, UNRAVEL = ravel_pytree(CASE.params)
X = CASE.inputs
T = targets_for(ng.Bernoulli(), CASE.model(CASE.params, X), 1)
L2, DAMPING = 0.7, 0.3


def matrices(path, leaf):
    return leaf.ndim > 1


@pytest.mark.parametrize("chosen", [None, matrices], ids=["all", "matrices"])
@pytest.mark.parametrize("microbatch", [None, 3])
def test_every_number_of_a_step_with_a_penalty_is_the_dense_formulas(chosen, microbatch):
    mask = ravel_pytree(
        jax.tree.map(lambda leaf: jnp.full_like(leaf, chosen is None or leaf.ndim > 1), CASE.params)
    )[0]
    penalty = L2 * np.asarray(mask)

    def loss(p):
        r = CASE.model(UNRAVEL(p), X)
        return jnp.mean(ng.Bernoulli().nll(r, T)) + jnp.sum(penalty * p**2) / 2

    g = np.asarray(jax.grad(loss)(FLAT))
    J, r = oracles.jacobians(CASE.model, CASE.params, X), np.asarray(CASE.model(CASE.params, X))
    F = oracles.metric(J, [oracles.bernoulli_matrix(row) for row in r], np.ones(7))
    step = -np.linalg.solve(F + np.diag(penalty) + DAMPING * np.eye(FLAT.size), g)
    predicted = g @ step + step @ (F + np.diag(penalty)) @ step / 2
    actual = float(loss(FLAT + step) - loss(FLAT))

    opt = ng.natural_gradient(
        CASE.model,
        ng.Bernoulli(),
        solver=ng.CG(200, 1e-13),
        damping=ng.LevenbergMarquardt(DAMPING),
        l2=L2,
        decayed=chosen,
        microbatch=microbatch,
    )
    params, _, info = opt.step(CASE.params, opt.init(CASE.params), (X, T))
    np.testing.assert_allclose(ravel_pytree(params)[0], FLAT + step, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(info.loss, loss(FLAT), rtol=1e-12)
    np.testing.assert_allclose(info.new_loss, loss(FLAT + step), rtol=1e-9)
    np.testing.assert_allclose(info.rho, actual / predicted, rtol=1e-7)
    # The penalty is no part of the divergence.
    np.testing.assert_allclose(info.kl, step @ F @ step / 2, rtol=1e-8)


@pytest.mark.parametrize("recipe", [ng.kncg, ng.hessian_free, ng.natural_conjugate_gradient])
def test_a_penalty_on_chosen_parameters_pulls_them_alone(recipe):
    opt = recipe(CASE.model, ng.Bernoulli(), l2=30.0, decayed=matrices)
    params, state = CASE.params, opt.init(CASE.params)
    for _ in range(25):
        params, state, _ = opt.step(params, state, (X, T))
    norms = [(leaf.ndim, float(jnp.linalg.norm(leaf))) for leaf in jax.tree.leaves(params)]
    assert max(norm for ndim, norm in norms if ndim > 1) < 0.05
    assert max(norm for ndim, norm in norms if ndim == 1) > 0.1
