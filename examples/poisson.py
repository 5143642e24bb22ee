"""−Δu = f in the unit square to many digits: a small net, the Jacobian decomposed in every step.

257 parameters, 900 points inside, 120 on the edge, and targets that can be met: `ng.gauss_newton`, in float64. The
Laplacian is written out by hand: through a layer go the value, its gradient and its Laplacian.

    python examples/poisson.py
"""

import time

import jax
import jax.numpy as jnp

import natgrad as ng


def u(params, points):
    """Return the solution at some points."""
    return jnp.tanh(points @ params["w"] + params["b"]) @ params["v"] + params["c"]


def laplacian(params, points):
    """Return Δu: with h = tanh(a), Δh = h″(a)|∇a|² + h′(a)Δa, and a is linear in the point."""
    h = jnp.tanh(points @ params["w"] + params["b"])
    return (-2 * h * (1 - h**2) * jnp.sum(params["w"] ** 2, axis=0)) @ params["v"]


def model(params, points):
    """Return (−Δu inside, u on the edge)."""
    inside, edge = points
    return -laplacian(params, inside), u(params, edge)


def exact(points):
    return jnp.prod(jnp.sin(jnp.pi * points), axis=-1)


def data(key, inside=900, edge=120):
    """Return points inside and on the edge, f inside and 0 on the edge."""
    k1, k2, k3, k4 = jax.random.split(key, 4)
    points = jax.random.uniform(k1, (inside, 2))
    axis = jax.random.randint(k3, (edge, 1), 0, 2) == jnp.arange(2)
    side = jax.random.randint(k4, (edge, 1), 0, 2).astype(points.dtype)
    border = jnp.where(axis, side, jax.random.uniform(k2, (edge, 2)))
    return (points, border), (2 * jnp.pi**2 * exact(points), jnp.zeros(edge))


def init(key, hidden=64):
    """Return weights and biases uniform within ± 1/√fan-in."""
    shapes = {"w": (2, hidden), "b": (hidden,), "v": (hidden,), "c": ()}
    fans = {"w": 2, "b": 2, "v": hidden, "c": hidden}
    keys = dict(zip(shapes, jax.random.split(key, 4), strict=True))
    return {k: jax.random.uniform(keys[k], shapes[k], minval=-1, maxval=1) / fans[k] ** 0.5 for k in shapes}


def error(params, points):
    """Return ‖u − u*‖ / ‖u*‖."""
    return jnp.linalg.norm(u(params, points) - exact(points)) / jnp.linalg.norm(exact(points))


def main(seed=0, goal=1e-5, most=1000, hidden=64):
    """Return the steps, the seconds without compiling, and the relative error they reached."""
    with jax.enable_x64(True):
        k1, k2, k3 = jax.random.split(jax.random.key(seed), 3)
        params, batch, others = init(k1, hidden), data(k2), jax.random.uniform(k3, (9000, 2))
        opt = ng.gauss_newton(model, ng.Product(ng.Gaussian(), ng.Gaussian()))
        state, measure = opt.init(params), jax.jit(error)
        jax.block_until_ready((opt.step(params, state, batch), measure(params, others)))  # compile
        start, steps, reached, accepted = time.perf_counter(), 0, jnp.inf, True
        while reached > goal and accepted and steps < most:
            params, state, info = opt.step(params, state, batch)
            steps, reached, accepted = steps + 1, float(measure(params, others)), bool(info.accepted)
        seconds = time.perf_counter() - start
    print(f"seed {seed}: relative error {reached:.1e} after {steps} steps, {seconds:.1f} s")
    return steps, seconds, reached


if __name__ == "__main__":
    main()
