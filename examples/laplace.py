"""Uncertainty after training, from the same metric product: the Laplace approximation.

Around a minimum the posterior of the parameters is close to a Gaussian with covariance (N F + I)⁻¹, I being the
prior's precision. So an output's variance is jᵀ (N F + I)⁻¹ j, j its gradient: one linear solve a point, and the
same F that trained the net. Nothing is formed.

    python examples/laplace.py
"""

import jax
import jax.numpy as jnp

import natgrad as ng

NOISE = 0.1


def model(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def data(key, count=100):
    """Return noisy samples of sin(3x) on [−1, −0.3] and [0.3, 1]: a gap between, nothing outside."""
    k1, k2, k3 = jax.random.split(key, 3)
    x = jax.random.uniform(k1, (count, 1), minval=0.3, maxval=1.0)
    x = x * jax.random.rademacher(k2, x.shape, x.dtype)
    return x, jnp.sin(3 * x) + NOISE * jax.random.normal(k3, x.shape)


def deviation(params, inputs, points, likelihood, solver):
    """Return the standard deviation of the output at each point."""
    metric = ng.metric_product(model, likelihood, params, inputs)
    count = inputs.shape[0]

    def one(point):
        j = jax.grad(lambda p: model(p, point[None])[0, 0])(params)
        solved = solver(metric, j, shift=1 / count).x
        return jnp.sqrt(sum(jax.tree.leaves(jax.tree.map(jnp.vdot, j, solved))) / count)

    return jax.jit(lambda p: jax.lax.map(one, p))(points)


def main(steps=100):
    """Train, and return the deviations in the data, in the gap and outside."""
    likelihood = ng.Gaussian(NOISE)
    x, t = data(jax.random.key(0))
    k1, k2, k3 = jax.random.split(jax.random.key(1), 3)
    params = {
        "w": 3 * jax.random.normal(k1, (1, 30)),
        "b": jax.random.normal(k2, (30,)),
        "v": 0.2 * jax.random.normal(k3, (30, 1)),
    }
    opt = ng.natural_gradient(model, likelihood, l2=1 / len(x))
    *_, (params, _, info) = ng.loop(opt, params, [(x, t)] * steps)
    places = {"in the data": 0.6, "in the gap": 0.0, "outside": 2.0}
    points = jnp.array(list(places.values()))[:, None]
    deviations = deviation(params, x, points, likelihood, ng.CG(maxiter=200, rtol=1e-6))
    print(f"loss {info.loss:.3f}")
    for (name, at), value in zip(places.items(), deviations, strict=True):
        print(f"{name:12s} x = {at:4.1f}: {float(model(params, jnp.array([[at]]))[0, 0]):6.3f} ± {value:.3f}")
    return dict(zip(places, deviations.tolist(), strict=True))


if __name__ == "__main__":
    main()
