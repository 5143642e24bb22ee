"""The examples of the methods, small: what each of them claims."""

import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def as_a_user_runs_it():
    """Examples run in JAX's default settings: float32, standard promotion."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


def load(name):
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))  # for their helper
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_boltzmann_metric_is_the_covariance_of_the_energys_gradient():
    example = load("boltzmann")
    keys = jax.random.split(jax.random.key(0), 3)
    params = {"w": jax.random.normal(keys[0], (9, 8)), "b": jnp.ones(9), "c": jnp.ones(8)}
    v = jax.random.bernoulli(keys[1], 0.5, (50, 9)).astype(jnp.float32)
    units = (v, example.hidden_given(params, v, keys[2]))
    opt = example.natural()
    operator = ng.metric_product(
        opt.model, opt.likelihood, params, units, metric=opt.metric, targets=jnp.zeros(50)
    )
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    rows = jax.vmap(
        lambda v, h: jax.flatten_util.ravel_pytree(
            jax.grad(lambda p: example.energy(p, (v[None], h[None]))[0])(params)
        )[0]
    )(*units)
    explicit = np.cov(np.asarray(rows, np.float64).T, bias=True)
    product = jax.jit(lambda e: jax.flatten_util.ravel_pytree(operator(unravel(e)))[0])
    dense = np.stack([product(e) for e in jnp.eye(flat.size)])
    np.testing.assert_allclose(dense, explicit, atol=1e-4)
    assert np.linalg.matrix_rank(explicit) <= 49


def test_natural_gradient_trains_a_boltzmann_machine_faster():
    example = load("boltzmann")
    natural = example.train(example.natural(), steps=250)
    plain = example.train(ng.sgd(example.energy, example.ENERGY, learning_rate=0.5), steps=250)
    assert float(natural[-1]) < float(plain[-1]) - 0.5


def test_a_natural_policy_balances_the_pole_and_keeps_its_radius():
    example = load("policy")
    length, kl = example.train(example.natural(radius=0.02), updates=20)
    assert float(length[-1]) > 150 > float(length[0])
    # The radius is met unless the rate's bound comes first.
    assert np.all(np.asarray(kl) <= 0.02 * 1.01)
    np.testing.assert_allclose(kl[:5], 0.02, rtol=0.01)


def test_fisher_predicts_the_kl_where_the_covariance_does_not():
    kl, fisher, covariance, _ = load("fisher_or_covariance").run(steps=60)
    assert np.all(np.abs(fisher / kl - 1) < 0.1)
    # The better the model fits what it can fit, the less its errors say about its own distribution.
    assert np.all(np.abs(covariance[30:] / kl[30:] - 1) > 0.25)


def test_the_addition_task_is_learned_by_hessian_free():
    """T = 30: a minute of training in the real run; here a few steps show the fall."""
    example = load("recurrent")
    opt = ng.hessian_free(
        example.model, ng.Gaussian(), solver=ng.TruncatedCG(20), damping=ng.LevenbergMarquardt(0.1)
    )
    rows = example.train(opt, 30, 150, steps=25)
    assert rows[-1, 2] < 0.5 * example.BLIND
