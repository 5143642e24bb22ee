"""−Δu = f in the unit square to many digits: a small net, the Jacobian decomposed in every step.

257 parameters, 900 points inside, 120 on the edge, and targets that can be met: `ng.gauss_newton`, in float64. The
Laplacian is written out by hand: through a layer go the value, its gradient and its Laplacian.

    python examples/poisson.py

Seeds 0 to 9, two busy cores with OPENBLAS_NUM_THREADS=1, compiling (12 s) apart: all ten reach 1e-5 in 20 to 106
steps, 1.0 to 5.1 s of processor time, and 1e-7 in 96 to 475 steps, 4.6 to 21.8 s. The settings were chosen on seeds
100 to 102.
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
    second = -2 * h * (1 - h**2)
    return (second * jnp.sum(params["w"] ** 2, axis=0)) @ params["v"]


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

    def uniform(key, *shape, fan):
        return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0) / fan**0.5

    k1, k2, k3, k4 = jax.random.split(key, 4)
    return {
        "w": uniform(k1, 2, hidden, fan=2),
        "b": uniform(k2, hidden, fan=2),
        "v": uniform(k3, hidden, fan=hidden),
        "c": uniform(k4, fan=hidden),
    }


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
        start = time.perf_counter()
        for count in range(1, most + 1):  # noqa: B007
            params, state, info = opt.step(params, state, batch)
            reached = float(measure(params, others))
            if reached <= goal or not info.accepted:
                break
        seconds = time.perf_counter() - start
    print(
        f"seed {seed}: relative error {reached:.1e} after {count} steps, {seconds:.1f} s; λ = {info.damping:.0e}"
    )
    return count, seconds, reached


if __name__ == "__main__":
    main()
