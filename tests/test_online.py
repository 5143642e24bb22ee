"""The paper's online regime: a gradient from one example needs a metric from others."""

import jax
import jax.numpy as jnp
import numpy as np

import natgrad as ng


def model(params, x):
    return x @ params["w"] + params["b"]


def test_one_example_is_enough_for_the_gradient_but_not_for_the_metric():
    """Noisy labels, inputs of very different scales: the metric of a fixed, unlabeled held-out set learns; the
    metric of the gradient's own example, with the same damping and whatever rate, does not get halfway."""
    scales = jnp.array([10.0, 1.0, 0.1, 0.1])
    truth = {"w": (jnp.array([3.0, -2.0, 2.0, 3.0]) / scales)[:, None], "b": jnp.zeros(1)}
    keys = jax.random.split(jax.random.key(0), 5)
    x, held_out, test = (
        scales * jax.random.normal(k, (n, 4)) for k, n in zip(keys[:3], (1500, 100, 500), strict=True)
    )
    t, test_t = (
        jax.random.bernoulli(k, jax.nn.sigmoid(model(truth, u))).astype(u.dtype)
        for k, u in zip(keys[3:], (x, test), strict=True)
    )
    opt = ng.natural_gradient(model, ng.Bernoulli(), solver=ng.CG(maxiter=10), damping=ng.Constant(1e-3))

    def test_loss(params):
        return jnp.mean(ng.Bernoulli().nll(model(params, test), test_t))

    def run(own_metric, rate):
        def step(carry, example):
            u, label = example
            metric = None if own_metric else held_out
            params, state, info = opt.step(
                *carry, (u[None], label[None]), metric_inputs=metric, learning_rate=rate
            )
            return (params, state), info.accepted

        params = {"w": jnp.zeros((4, 1)), "b": jnp.zeros(1)}
        (params, _), accepted = jax.lax.scan(step, (params, opt.init(params)), (x, t))
        return test_loss(params), accepted

    runs = jax.jit(jax.vmap(run, (None, 0)), static_argnums=0)
    rates = jnp.array([0.005, 0.01, 0.02, 0.05, 0.1])
    best, chance = test_loss(truth), np.log(2)
    learned, accepted = runs(False, rates[:3])
    failed, _ = runs(True, rates)
    assert accepted.all()
    assert (learned < best + 0.05).all()
    assert (failed > (best + chance) / 2).all()
