"""The online regime: the gradient from one example at a time, the metric from unlabelled others.

One example's metric has rank 1 and says nothing about the other directions; inputs of very different scales then
make any one rate wrong. A few dozen unlabelled inputs, always the same, give the full metric.

    python examples/online.py
"""

import jax
import jax.numpy as jnp

import natgrad as ng

SCALES = jnp.array([10.0, 1.0, 0.1, 0.1])


def model(params, x):
    return x @ params["w"] + params["b"]


TRUTH = {"w": (jnp.array([3.0, -2.0, 2.0, 3.0]) / SCALES)[:, None], "b": jnp.zeros(1)}


def data(key, count):
    """Return inputs of very different scales and labels drawn from the true model."""
    k1, k2 = jax.random.split(key)
    x = SCALES * jax.random.normal(k1, (count, 4))
    return x, jax.random.bernoulli(k2, jax.nn.sigmoid(model(TRUTH, x))).astype(x.dtype)


def stream(opt, x, t, rates, unlabelled=None):
    """Return the parameters after one pass, one example a step, for each rate."""
    start = {"w": jnp.zeros((4, 1)), "b": jnp.zeros(1)}

    def run(rate):
        def step(carry, example):
            u, label = example
            batch = (u[None], label[None])
            params, state, _ = opt.step(*carry, batch, metric_inputs=unlabelled, learning_rate=rate)
            return (params, state), None

        return jax.lax.scan(step, (start, opt.init(start)), (x, t))[0][0]

    return jax.jit(jax.vmap(run))(jnp.array(rates))


def main(count=1500):
    """Return each method's loss on new data at its best rate, and the true model's."""
    k1, k2, k3 = jax.random.split(jax.random.key(0), 3)
    x, t = data(k1, count)
    unlabelled, _ = data(k2, 100)
    test, test_t = data(k3, 2000)

    def test_loss(params):
        return jnp.mean(ng.Bernoulli().nll(model(params, test), test_t))

    natural = ng.natural_gradient(model, ng.Bernoulli(), solver=ng.CG(maxiter=10), damping=ng.Constant(1e-3))
    sgd = ng.sgd(model, ng.Bernoulli())
    runs = {
        "natural gradient, unlabelled metric": (natural, (0.005, 0.02), unlabelled),
        "natural gradient, the example's own": (natural, (0.005, 0.02, 0.1), None),
        "gradient": (sgd, (0.001, 0.01, 0.1), None),
    }
    losses = {"the true model": float(test_loss(TRUTH))}
    for name, (opt, rates, metric) in runs.items():
        losses[name] = float(jnp.min(jax.vmap(test_loss)(stream(opt, x, t, rates, metric))))
    for name, loss in losses.items():
        print(f"{name:36s} {loss:.3f}")
    return losses


if __name__ == "__main__":
    main()
