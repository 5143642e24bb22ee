"""How far a step moves the model, against dense float64 and against the true divergence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad_paper.figures.unlabelled.step_kl import WHERE, StepKL

pytestmark = pytest.mark.usefixtures("fast_compile")


def model(params, inputs):
    return jnp.tanh(inputs @ params["w"]) @ params["v"]


@pytest.fixture(scope="module")
def scene():
    rng = np.random.default_rng(0)
    before = {"w": rng.standard_normal((3, 4)), "v": rng.standard_normal((4, 2))}
    after = {name: value + 0.01 * rng.standard_normal(value.shape) for name, value in before.items()}
    batches = [rng.standard_normal((n, 3)) for n in (5, 7, 9)]
    return jax.tree.map(jnp.asarray, (before, after, batches))


def dense(before, after, inputs):
    """Return ½ dᵀFd with the Fisher matrix written out: Jᵀ diag(p(1 − p)) J, averaged over inputs."""
    flat, unravel = jax.flatten_util.ravel_pytree(before)
    step = np.asarray(jax.flatten_util.ravel_pytree(after)[0] - flat)
    total = 0.0
    for x in inputs:
        jacobian = np.asarray(jax.jacobian(lambda f, x=x: model(unravel(f), x[None])[0])(flat))
        p = np.asarray(jax.nn.sigmoid(model(before, x[None])[0]))
        total += step @ jacobian.T @ np.diag(p * (1 - p)) @ jacobian @ step
    return total / len(inputs) / 2


def test_is_the_quadratic_form_on_each_batch(scene):
    before, after, (gradient, metric, held_out) = scene
    found = StepKL(model, ng.Bernoulli(), count=6)(before, after, gradient, metric, held_out)
    assert list(found) == list(WHERE)
    for field, inputs in (("kl_metric", metric), ("kl_gradient", gradient), ("kl_held_out", held_out[:6])):
        np.testing.assert_allclose(found[field], dense(before, after, inputs), rtol=1e-10)


def test_is_nearly_the_divergence_of_a_short_step(scene):
    before, after, (gradient, metric, held_out) = scene
    found = StepKL(model, ng.Bernoulli(), count=9)(before, after, gradient, metric, held_out)
    p, q = (np.asarray(jax.nn.sigmoid(model(params, held_out))) for params in (before, after))
    kl = np.sum(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)), axis=1).mean()
    np.testing.assert_allclose(found["kl_held_out"], kl, rtol=0.05)


def test_no_step_is_no_distance(scene):
    before, _, batches = scene
    found = StepKL(model, ng.Bernoulli(), count=9)(before, before, *batches)
    assert [float(value) for value in found.values()] == [0.0] * 3
