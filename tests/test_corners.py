"""Corners of the step: parts of a user's own, numbers of every kind, programs without jit."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from models import MODELS, targets_for

import natgrad as ng
from natgrad.directions import Descent

CASE = MODELS["mlp"]
X = CASE.inputs
T = targets_for(ng.Bernoulli(), CASE.model(CASE.params, X), 1)


@dataclass(frozen=True)
class LayerWise(Descent):
    """Every array's gradient at length 1."""

    needs_metric = False

    def natural(self, here, memory):
        return jax.tree.map(lambda g: g / jnp.linalg.norm(g), here.gradient), memory, None


def test_a_part_of_a_users_sees_the_parameters_own_arrays():
    opt = ng.Optimizer(CASE.model, ng.Bernoulli(), LayerWise(), ng.FixedRate(0.1))
    for step in (opt.step, jax.jit(opt.step)):
        params, _, _ = step(CASE.params, opt.init(CASE.params), (X, T))
        lengths = jax.tree.map(lambda new, old: jnp.linalg.norm(new - old), params, CASE.params)
        np.testing.assert_allclose(jax.tree.leaves(lengths), 0.1, rtol=1e-6)


@dataclass(frozen=True)
class Reordered(ng.Likelihood):
    """Another likelihood, of outputs in another order."""

    order: jax.Array
    inner: ng.Likelihood = ng.Bernoulli()

    def nll(self, outputs, targets):
        return self.inner.nll(outputs[:, self.order], targets)

    def at(self, outputs):
        return self.inner.at(outputs)


def test_integers_of_a_part_stay_integers():
    opt = ng.natural_gradient(CASE.model, Reordered(jnp.array([2, 0, 1])))
    _, _, info = opt.step(CASE.params, opt.init(CASE.params), (X, T))
    expected = ng.Bernoulli().nll(CASE.model(CASE.params, X)[:, jnp.array([2, 0, 1])], T)
    np.testing.assert_allclose(info.loss, jnp.mean(expected), rtol=1e-12)


def test_a_step_runs_without_jit():
    opt = ng.sgd(CASE.model, ng.Bernoulli())
    wanted, _, _ = opt.step(CASE.params, opt.init(CASE.params), (X, T))
    with jax.disable_jit(), jax.numpy_dtype_promotion("standard"):
        found, _, _ = opt.step(CASE.params, opt.init(CASE.params), (X, T))
    np.testing.assert_allclose(ravel_pytree(found)[0], ravel_pytree(wanted)[0], rtol=1e-12)


def test_weights_of_the_metric_beside_batches_are_refused():
    opt = ng.natural_gradient(CASE.model, ng.Bernoulli())
    with pytest.raises(ValueError, match="not both"):
        opt.step(CASE.params, opt.init(CASE.params), ng.Batches((X, T)), metric_weights=jnp.ones(7))


def test_in_the_optax_link_the_penalty_is_part_of_the_measured_change():
    opt = ng.natural_gradient(CASE.model, ng.Bernoulli(), l2=0.1)
    link = ng.optax.from_optimizer(opt)

    def loss(params, inputs, targets):
        return jnp.mean(ng.Bernoulli().nll(CASE.model(params, inputs), targets))

    params, state = CASE.params, opt.init(CASE.params)
    linked, link_state = CASE.params, link.init(CASE.params)
    for _ in range(3):
        params, state, info = opt.step(params, state, (X, T))
        updates, link_state = link.update(
            jax.grad(loss)(linked, X, T), link_state, linked, inputs=X, targets=T, value_fn=loss
        )
        linked = optax.apply_updates(linked, updates)
    np.testing.assert_allclose(link_state.info.rho, info.rho, rtol=1e-6)
    np.testing.assert_allclose(ravel_pytree(linked)[0], ravel_pytree(params)[0], rtol=1e-8)


def test_with_a_penalty_the_same_batch_is_not_taken_for_another():
    opt = ng.natural_gradient(CASE.model, ng.Bernoulli(), l2=0.05)
    params, state = CASE.params, opt.init(CASE.params)
    for _ in range(4):
        params, state, _ = opt.step(params, state, (X, T))
    assert state.record.calm == 32


def test_an_integer_among_bounds_compiles_nothing(compilations):
    def step(bounds):
        opt = ng.natural_gradient(CASE.model, ng.Bernoulli(), damping=ng.LevenbergMarquardt(1, bounds=bounds))
        return opt.step(CASE.params, opt.init(CASE.params), (X, T))

    step((1e-12, 1e12))
    with compilations() as count:
        step((1e-10, 10))
    assert count() == 0


def test_cobyla_takes_arrays_as_numbers():
    search = ng.Cobyla(initial_radius=jnp.float32(1.0), final_radius=np.float64(1e-3), maxprobes=8)
    opt = ng.natural_conjugate_gradient(CASE.model, ng.Bernoulli(), search=search, l2=np.float64(1e-3))
    _, _, info = opt.step(CASE.params, opt.init(CASE.params), (X, T))
    assert info.accepted
