"""TONGA against the dense covariance it stands for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad.directions import Tonga
from natgrad.metric.here import Here

pytestmark = pytest.mark.usefixtures("fast_compile")

SIZE = 6


def gradients(count, seed=0):
    return jax.random.normal(jax.random.key(seed), (count, SIZE)) * jnp.logspace(0, 1, SIZE) + 0.5


def run(tonga: Tonga, stream, damping=0.7):
    """Return the row of every step, and the last memory."""

    def step(memory, g):
        here = Here(None, None, None, None, gradient=g, shift=jnp.asarray(damping))
        found = tonga.propose(here, memory)
        return found.memory, found.rows[0]

    memory, rows = jax.lax.scan(step, tonga.init(jax.tree.map(lambda leaf: leaf[0], stream)), stream)
    return rows, memory


def dense(stream, decay, damping, centered=False):
    covariance, mean, rows = np.zeros((SIZE, SIZE)), np.zeros(SIZE), []
    for count, g in enumerate(np.asarray(stream), start=1):
        total = sum(decay**i for i in range(count))
        mean = mean + (g - mean) / total
        sample = g - mean if centered else g
        covariance = decay * covariance + np.outer(sample, sample)
        rows.append(-total * np.linalg.solve(covariance + damping * np.eye(SIZE), g))
    return np.stack(rows)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("decay", [0.9, 1.0])
def test_before_truncation_the_direction_is_the_dense_one(centered, decay):
    stream = gradients(9)
    rows, _ = run(Tonga(rank=2, block=10, decay=decay, centered=centered), stream)
    np.testing.assert_allclose(rows, dense(stream, decay, 0.7, centered), rtol=1e-9)


def test_truncation_keeps_the_best_approximation_of_its_rank():
    stream, decay = gradients(10), 0.9
    _, memory = run(Tonga(rank=2, block=10, decay=decay), stream)
    covariance = sum(decay ** (9 - i) * np.outer(g, g) for i, g in enumerate(np.asarray(stream)))
    values, vectors = np.linalg.eigh(covariance)
    best = (vectors[:, -2:] * values[-2:]) @ vectors[:, -2:].T
    rows = np.asarray(memory.covariance.rows.leaves) * np.asarray(memory.covariance.weights)[:, None]
    np.testing.assert_allclose(rows.T @ rows, best, atol=1e-9 * values[-1])


def test_after_truncation_the_direction_uses_what_was_kept():
    stream, decay = gradients(11), 0.9
    rows, _ = run(Tonga(rank=2, block=10, decay=decay), stream)
    head, last = np.asarray(stream[:10]), np.asarray(stream[10])
    covariance = sum(decay ** (9 - i) * np.outer(g, g) for i, g in enumerate(head))
    values, vectors = np.linalg.eigh(covariance)
    kept = (vectors[:, -2:] * values[-2:]) @ vectors[:, -2:].T
    total = (1 - decay**11) / (1 - decay)
    expected = -total * np.linalg.solve(decay * kept + np.outer(last, last) + 0.7 * np.eye(SIZE), last)
    np.testing.assert_allclose(rows[-1], expected, rtol=1e-9)


def test_a_rank_as_large_as_the_space_loses_nothing_by_truncation():
    stream = gradients(12)
    rows, _ = run(Tonga(rank=SIZE, block=4, decay=0.9), stream)
    np.testing.assert_allclose(rows, dense(stream, 0.9, 0.7), rtol=1e-8)


def test_the_batch_form_is_natural_gradient_with_the_empirical_fisher():
    """With γ = 1 and one gradient an example, C is n times TONGA's U: the same matrix, the same direction."""
    x, t = gradients(8), jnp.sin(jnp.arange(8.0))
    theta = jnp.linspace(-1, 1, SIZE)

    def model(theta, inputs):
        return inputs @ theta

    one_by_one = jax.vmap(jax.grad(lambda p, x, t: (x @ p - t) ** 2 / 2), (None, 0, 0))(theta, x, t)
    _, memory = run(Tonga(rank=2, block=10, decay=1.0), one_by_one)
    covariance = np.asarray(memory.covariance.rows.leaves).T @ np.asarray(memory.covariance.rows.leaves)
    metric = ng.metric_product(model, ng.Gaussian(), theta, x, None, ng.EmpiricalFisher(), targets=t)
    np.testing.assert_allclose(np.stack([metric(e) for e in jnp.eye(SIZE)]), covariance / 8, rtol=1e-10)


def test_a_refused_step_keeps_the_covariance():
    def model(theta, inputs):
        return inputs @ theta

    x, t = gradients(8), jnp.sin(jnp.arange(8.0))
    opt = ng.tonga(model, ng.Gaussian())
    params = jnp.zeros(SIZE)
    params, state, _ = opt.step(params, opt.init(params), (x, t))
    same, after, info = opt.step(params, state, (x.at[0, 0].set(jnp.inf), t))
    assert not info.accepted
    np.testing.assert_array_equal(same, params)
    jax.tree.map(np.testing.assert_array_equal, after.direction, state.direction)
