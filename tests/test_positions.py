"""A weight per position of a sequence: against dense sums over positions, and against masking by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.flatten_util import ravel_pytree
from models import MODELS

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")

MODEL, PARAMS, X = MODELS["recurrent"]
LENGTHS = np.array([4, 2, 3, 0, 1, 4, 2])
MASK = jnp.asarray(np.arange(4) < LENGTHS[:, None], jnp.float64)
WEIGHTS = MASK * jnp.linspace(0.5, 2.0, 28).reshape(7, 4)
CLASSES = jnp.asarray(np.random.default_rng(0).integers(0, 3, (7, 4)))
REALS = jnp.asarray(np.random.default_rng(1).normal(size=(7, 4, 3)))
SOLVER = ng.CG(60, 1e-13)

CASES = {"categorical": (ng.Categorical(), CLASSES), "gaussian": (ng.Gaussian(0.5), REALS)}


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


def one_loss(name, r, t):
    """Each position's loss, from the definitions."""
    if name == "categorical":
        return -jnp.take_along_axis(jax.nn.log_softmax(r), t[..., None], axis=-1)[..., 0]
    return jnp.sum((r - t) ** 2, axis=-1) / (2 * 0.5**2)


def by_hand(name, weights):
    """The weighted mean over positions."""
    _, targets = CASES[name]
    return lambda p: jnp.sum(weights * one_loss(name, MODEL(p, X), targets)) / jnp.sum(weights)


def small_matrix(name, r):
    return oracles.categorical_matrix(r) if name == "categorical" else oracles.gaussian_matrix(r, 0.5)


def by_position():
    """J of every position: (7, 4, outputs, parameters)."""
    return oracles.jacobians(MODEL, PARAMS, X).reshape(7, 4, 3, -1)


def dense(name, weights):
    """F = Σ w J M Jᵀ / Σ w over examples and positions."""
    J, r = by_position(), np.asarray(MODEL(PARAMS, X))
    F = sum(
        float(weights[i, k]) * J[i, k].T @ small_matrix(name, r[i, k]) @ J[i, k]
        for i in range(7)
        for k in range(4)
    )
    return F / float(np.sum(weights))


@pytest.mark.parametrize("microbatch", [None, 3])
@pytest.mark.parametrize("name", CASES)
def test_loss_gradient_metric_and_change(name, microbatch):
    likelihood, targets = CASES[name]
    opt = ng.natural_gradient(
        MODEL,
        likelihood,
        solver=SOLVER,
        damping=ng.LevenbergMarquardt(0.3),
        microbatch=microbatch,
        learning_rate=0.5,
    )
    loss = by_hand(name, WEIGHTS)
    after, _, info = opt.step(PARAMS, opt.init(PARAMS), (X, targets, WEIGHTS))
    F, g = dense(name, WEIGHTS), flat(jax.grad(loss)(PARAMS))
    step = -0.5 * oracles.solve(F, g, 0.3)
    np.testing.assert_allclose(flat(after) - flat(PARAMS), step, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(info.loss, loss(PARAMS), rtol=1e-12)
    np.testing.assert_allclose(info.new_loss, loss(after), rtol=1e-12)
    np.testing.assert_allclose(info.new_loss - info.loss, loss(after) - loss(PARAMS), rtol=1e-8)
    np.testing.assert_allclose(info.grad_norm, np.linalg.norm(g), rtol=1e-9)
    np.testing.assert_allclose(info.kl, step @ F @ step / 2, rtol=1e-7)

    product = ng.metric_product(MODEL, likelihood, PARAMS, X, WEIGHTS, microbatch=microbatch)
    np.testing.assert_allclose(oracles.matrix(product, PARAMS), F, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("microbatch", [None, 3])
@pytest.mark.parametrize("name", CASES)
def test_metrics_of_the_data_take_each_position_for_itself(name, microbatch):
    likelihood, targets = CASES[name]
    options = {"targets": targets, "microbatch": microbatch}
    slopes = jax.grad(lambda r: jnp.sum(one_loss(name, r, targets)))(MODEL(PARAMS, X))
    scores = np.einsum("ikop,iko->ikp", by_position(), slopes)
    U = np.einsum("ik,ikp,ikq->pq", WEIGHTS, scores, scores) / float(jnp.sum(WEIGHTS))
    product = ng.metric_product(MODEL, likelihood, PARAMS, X, WEIGHTS, metric=ng.EmpiricalFisher(), **options)
    np.testing.assert_allclose(oracles.matrix(product, PARAMS), U, rtol=1e-9, atol=1e-12)
    product = ng.metric_product(MODEL, likelihood, PARAMS, X, WEIGHTS, metric=ng.Hessian(), **options)
    start, unravel = ravel_pytree(PARAMS)
    H = jax.hessian(lambda p: by_hand(name, WEIGHTS)(unravel(p)))(start)
    np.testing.assert_allclose(oracles.matrix(product, PARAMS), H, rtol=1e-9, atol=1e-11)


def test_a_sampled_fisher_is_the_exact_one_in_the_mean():
    metric = ng.MonteCarloFisher(4000)
    product = ng.metric_product(MODEL, ng.Categorical(), PARAMS, X, WEIGHTS, metric=metric)
    F = dense("categorical", WEIGHTS)
    found = oracles.matrix(product, PARAMS)
    assert np.linalg.norm(found - F) < 0.05 * np.linalg.norm(F)


@pytest.mark.parametrize("name", CASES)
def test_a_mask_is_the_same_as_leaving_the_positions_out(name):
    """And what is said at a masked position, a class of −100 or a huge number, is not heard."""
    likelihood, targets = CASES[name]
    rows = np.flatnonzero(np.asarray(MASK).ravel())

    def kept(params, x):
        return MODEL(params, X).reshape(28, 3)[x[:, 0]]

    def trained(model, batch):
        opt = ng.natural_gradient(model, likelihood, solver=SOLVER, search=ng.LineSearch())
        params, state = PARAMS, opt.init(PARAMS)
        for _ in range(2):
            params, state, info = opt.step(params, state, batch)
        return flat(params), info

    garbage = -100 if name == "categorical" else 1e6
    hidden = jnp.where(MASK.reshape(7, 4, *(1,) * (targets.ndim - 2)) == 0, garbage, targets)
    masked, info = trained(MODEL, (X, hidden, MASK))
    places = jnp.asarray(rows)[:, None]
    alone, wanted = trained(kept, (places, targets.reshape(28, *targets.shape[2:])[rows]))
    np.testing.assert_allclose(masked, alone, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(info.loss, wanted.loss, rtol=1e-9)


@pytest.mark.parametrize("microbatch", [None, 3])
def test_inside_a_product_each_factor_has_its_own_weights(microbatch):
    likelihood = ng.Product(ng.Categorical(), ng.Gaussian(0.5), weights=(1.0, 0.3))

    def both(params, x):
        return MODEL(params, x), MODEL(params, x)

    per_example = jnp.linspace(1.0, 2.0, 7)
    opt = ng.natural_gradient(
        both, likelihood, solver=SOLVER, microbatch=microbatch, damping=ng.LevenbergMarquardt(0.3)
    )
    for weights in ((WEIGHTS, per_example), (WEIGHTS, WEIGHTS), WEIGHTS):
        own = weights if isinstance(weights, tuple) else (weights, weights)

        def loss(p, second=own[1]):
            values = one_loss("gaussian", MODEL(p, X), REALS)
            values = values if second.ndim == 2 else jnp.sum(values, axis=1)
            return by_hand("categorical", WEIGHTS)(p) + 0.3 * jnp.sum(second * values) / jnp.sum(second)

        # A mean over examples of sums over positions is a mean over positions, times their number.
        times = 1 if own[1].ndim == 2 else 4
        spread = own[1] if own[1].ndim == 2 else jnp.broadcast_to(own[1][:, None], (7, 4))
        F = dense("categorical", WEIGHTS) + 0.3 * times * dense("gaussian", spread)
        after, _, info = opt.step(PARAMS, opt.init(PARAMS), (X, (CLASSES, REALS), weights))
        step = -oracles.solve(F, flat(jax.grad(loss)(PARAMS)), 0.3)
        np.testing.assert_allclose(flat(after) - flat(PARAMS), step, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(info.loss, loss(PARAMS), rtol=1e-12)
        np.testing.assert_allclose(info.new_loss, loss(after), rtol=1e-12)


def test_an_objective_is_told_each_position_as_an_example():
    def absolute(outputs, targets):
        return jnp.sum(jnp.abs(outputs - targets), axis=tuple(range(1, outputs.ndim)))

    opt = ng.natural_gradient(
        MODEL, ng.Gaussian(0.5), objective=absolute, damping=ng.Constant(1.0), reject=-9
    )
    _, _, info = opt.step(PARAMS, opt.init(PARAMS), (X, REALS, WEIGHTS))
    wanted = jnp.sum(WEIGHTS * jnp.sum(jnp.abs(MODEL(PARAMS, X) - REALS), axis=-1)) / jnp.sum(WEIGHTS)
    np.testing.assert_allclose(info.loss, wanted, rtol=1e-12)


def test_an_objective_may_know_positions_alone():
    def picked(outputs, targets):
        return -jnp.take_along_axis(jax.nn.log_softmax(outputs), targets[:, None], axis=1)[:, 0]

    opt = ng.natural_gradient(MODEL, ng.Categorical(), objective=picked)
    _, _, info = opt.step(PARAMS, opt.init(PARAMS), (X, CLASSES, WEIGHTS))
    plain = ng.natural_gradient(MODEL, ng.Categorical())
    _, _, wanted = plain.step(PARAMS, plain.init(PARAMS), (X, CLASSES, WEIGHTS))
    np.testing.assert_allclose(info.loss, wanted.loss, rtol=1e-12)


@pytest.mark.parametrize("preconditioner", [ng.Diagonal(), ng.Jacobi(), ng.Kronecker()])
def test_preconditioners_train_on_masked_sequences(preconditioner):
    opt = ng.kncg(MODEL, ng.Categorical(), preconditioner=preconditioner, microbatch=3, average=None)
    params, state = PARAMS, opt.init(PARAMS)
    for _ in range(8):
        params, state, _ = opt.step(params, state, (X, CLASSES, WEIGHTS))
    loss = by_hand("categorical", WEIGHTS)
    assert loss(params) < 0.8 * loss(PARAMS)


def test_weights_that_fit_no_position_are_refused():
    opt = ng.natural_gradient(MODEL, ng.Categorical())
    for weights in (jnp.ones((7, 3)), jnp.ones((7, 4, 3)), jnp.ones(())):
        with pytest.raises(
            ValueError, match=r"one number per example is \(7,\), and one per position \(7, 4\)"
        ):
            opt.step(PARAMS, opt.init(PARAMS), (X, CLASSES, weights))
