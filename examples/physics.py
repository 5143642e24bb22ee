"""A physics-informed net: −Δu = f in the unit square, u = 0 on its edge, against Adam for the same processor time.

Two outputs with their own points, the equation inside and the value on the edge, are a `ng.Product`. The loss is a
sum of squares whose metric is very badly conditioned: first-order methods stall, Gauss–Newton does not (Müller &
Zeinhofer 2023 found the same). With so few parameters the Jacobian is decomposed in every step, in float64.

    python examples/physics.py [picture.png]
"""

from functools import partial

import helper
import jax
import jax.numpy as jnp
import optax

import natgrad as ng

LIKELIHOOD = ng.Product(ng.Gaussian(), ng.Gaussian(), weights=(1.0, 100.0))


def u(params, point):
    """Return the solution at one point."""
    return jnp.tanh(point @ params["w"] + params["b"]) @ params["v"] + params["c"]


def model(params, points):
    """Return (−Δu inside, u on the edge)."""
    inside, edge = points
    laplacian = jax.vmap(lambda p: jnp.trace(jax.hessian(partial(u, params))(p)))
    return -laplacian(inside), jax.vmap(partial(u, params))(edge)


def grid(side):
    """Return points of the unit square, and the solution there."""
    line = jnp.linspace(0, 1, side)
    points = jnp.stack(jnp.meshgrid(line, line), axis=-1).reshape(-1, 2)
    return points, jnp.prod(jnp.sin(jnp.pi * points), axis=-1)


def data(side=20):
    """Return points inside and on the edge, f inside and 0 on the edge."""
    points, exact = grid(side)
    on_edge = jnp.any((points == 0) | (points == 1), axis=1)
    targets = 2 * jnp.pi**2 * exact[~on_edge], jnp.zeros(jnp.sum(on_edge))
    return (points[~on_edge], points[on_edge]), targets


def init(key, hidden=32):
    k1, k2, k3 = jax.random.split(key, 3)
    w, b = jax.random.normal(k1, (2, hidden)), jax.random.normal(k2, (hidden,))
    return {"w": w, "b": b, "v": jax.random.normal(k3, (hidden,)) / hidden**0.5, "c": jnp.zeros(())}


def error(params):
    """Return ‖u − u*‖ / ‖u*‖ on a finer grid."""
    points, exact = grid(71)
    gap = jax.vmap(partial(u, params))(points) - exact
    return jnp.linalg.norm(gap) / jnp.linalg.norm(exact)


def main(seconds=20.0, side=20, out=None):
    """Return each method's relative error after the same time."""
    with jax.enable_x64(True):
        batch = data(side)
        contestants = {"Gauss–Newton": ng.gauss_newton(model, LIKELIHOOD)}
        halved = optax.exponential_decay(1e-2, 4000, 0.5)
        rates = {"Adam, rate 0.01": 1e-2, "Adam, rate 0.001": 1e-3, "Adam, halved every 4000": halved}
        contestants |= {n: helper.FirstOrder(optax.adam(r), model, LIKELIHOOD) for n, r in rates.items()}
        curves = {}
        for name, opt in contestants.items():
            _, rows = helper.race(opt, init(jax.random.key(0)), lambda _: batch, error, seconds=seconds)
            curves[name] = rows[:, 0], rows[:, 2]
    labels = "−Δu = f in the unit square", "processor time, s", "relative error"
    helper.show(out, curves, *labels, yscale="log")
    return {name: y[-1] for name, (_, y) in curves.items()}


if __name__ == "__main__":
    helper.run(main)
