"""Structural damping against the dense sum over time, in both of the paper's forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")

HIDDEN, TIMES, EXAMPLES = 3, 4, 5


def states(params, inputs):
    """Return the pre-activations of a recurrent net at all times: (examples, times, hidden)."""

    def tick(h, x):
        s = h @ params["w"] + x @ params["v"]
        return jnp.tanh(s), s

    start = jnp.zeros((inputs.shape[0], HIDDEN), inputs.dtype)
    _, s = jax.lax.scan(tick, start, jnp.swapaxes(inputs, 0, 1))
    return jnp.swapaxes(s, 0, 1)


def model(params, inputs):
    return jnp.tanh(states(params, inputs)[:, -1]) @ params["u"]


def tanh_logits(params, inputs):
    return 2 * states(params, inputs)


KEYS = jax.random.split(jax.random.key(0), 6)
PARAMS = {
    "w": jax.random.normal(KEYS[0], (HIDDEN, HIDDEN)),
    "v": jax.random.normal(KEYS[1], (2, HIDDEN)),
    "u": jax.random.normal(KEYS[2], (HIDDEN, 1)),
}
X = jax.random.normal(KEYS[3], (EXAMPLES, TIMES, 2))
T = jax.random.normal(KEYS[4], (EXAMPLES, 1))
FLAT, UNRAVEL = jax.flatten_util.ravel_pytree(PARAMS)


def dense(curvature):
    """Σ_t J_tᵀ diag(curvature(s_t)) J_t, averaged over examples."""
    jacobian = jax.jacrev(lambda flat: states(UNRAVEL(flat), X))(FLAT)
    weights = curvature(states(PARAMS, X))
    return np.einsum("nthp,nth,nthq->pq", jacobian, weights, jacobian) / EXAMPLES


def dense_operator(operator):
    rows = [jax.flatten_util.ravel_pytree(operator(UNRAVEL(e)))[0] for e in jnp.eye(FLAT.size)]
    return np.stack(rows)


@pytest.mark.parametrize(
    ("hidden", "curvature"),
    [
        (states, lambda s: jax.nn.sigmoid(s) * (1 - jax.nn.sigmoid(s))),
        (tanh_logits, lambda s: 1 - jnp.tanh(s) ** 2),
    ],
)
def test_the_product_is_the_dense_sum_over_time(hidden, curvature):
    metric = ng.StructuralDamping(hidden, mu=0.3, tied=False)
    operator = ng.metric_product(model, ng.Gaussian(), PARAMS, X, metric=metric)
    np.testing.assert_allclose(dense_operator(operator), 0.3 * dense(curvature), atol=1e-12)


def test_added_to_fisher_it_is_the_metric_of_the_two_constraints():
    fisher = ng.metric_product(model, ng.Gaussian(), PARAMS, X)
    both = ng.metric_product(
        model, ng.Gaussian(), PARAMS, X, metric=ng.Fisher() + ng.StructuralDamping(tanh_logits, 1.0, False)
    )
    expected = dense_operator(fisher) + dense(lambda s: 1 - jnp.tanh(s) ** 2)
    np.testing.assert_allclose(dense_operator(both), expected, atol=1e-12)


def test_the_joint_density_is_the_untied_form_with_mu_one():
    """p(t, h | x) as a Product of the output and the hidden likelihoods has the metric F + S."""

    def joint(params, inputs):
        return model(params, inputs), tanh_logits(params, inputs)

    product = ng.metric_product(joint, ng.Product(ng.Gaussian(), ng.Bernoulli()), PARAMS, X)
    sum_of_both = ng.metric_product(
        model, ng.Gaussian(), PARAMS, X, metric=ng.Fisher() + ng.StructuralDamping(tanh_logits, 1.0, False)
    )
    np.testing.assert_allclose(dense_operator(product), dense_operator(sum_of_both), atol=1e-12)


def test_tied_it_follows_lambda_and_stays_out_of_prediction_and_kl():
    solver = ng.CG(200, 1e-13)
    damping = ng.LevenbergMarquardt(0.5)
    metric = ng.Fisher() + ng.StructuralDamping(tanh_logits, mu=0.3)
    opt = ng.natural_gradient(model, ng.Gaussian(), metric=metric, solver=solver, damping=damping)
    moved, _, info = opt.step(PARAMS, opt.init(PARAMS), (X, T))
    fisher = dense_operator(ng.metric_product(model, ng.Gaussian(), PARAMS, X))
    structural = dense(lambda s: 1 - jnp.tanh(s) ** 2)
    loss = lambda flat: jnp.mean(jnp.sum((model(UNRAVEL(flat), X) - T) ** 2, 1)) / 2  # noqa: E731
    gradient = np.asarray(jax.grad(loss)(FLAT))
    damped = fisher + 0.5 * (0.3 * structural + np.eye(FLAT.size))
    step = -np.linalg.solve(damped, gradient)
    found = jax.flatten_util.ravel_pytree(moved)[0] - FLAT
    np.testing.assert_allclose(found, step, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(info.kl, step @ fisher @ step / 2, rtol=1e-7)
    predicted = gradient @ step + step @ fisher @ step / 2
    np.testing.assert_allclose(info.rho, (loss(FLAT + step) - loss(FLAT)) / predicted, rtol=1e-6)


def test_it_adds_no_gradient():
    """S has its minimum at d = 0: with any μ the direction at λ → ∞ is the same −g/λ."""
    for mu in (0.0, 10.0):
        opt = ng.natural_gradient(
            model,
            ng.Gaussian(),
            metric=ng.Fisher() + ng.StructuralDamping(tanh_logits, mu, tied=False),
            damping=ng.Constant(1e8),
        )
        _, _, info = opt.step(PARAMS, opt.init(PARAMS), (X, T))
        np.testing.assert_allclose(info.step_norm * 1e8, info.grad_norm, rtol=1e-5)


def test_chunks_do_not_change_it():
    metric = ng.Fisher() + ng.StructuralDamping(tanh_logits, 0.3, tied=False)
    whole = ng.metric_product(model, ng.Gaussian(), PARAMS, X, metric=metric)
    chunked = ng.metric_product(model, ng.Gaussian(), PARAMS, X, metric=metric, microbatch=2)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), whole(PARAMS), chunked(PARAMS))
