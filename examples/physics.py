"""A physics-informed net: −Δu = f in the unit square, u = 0 on its edge, against Adam at equal time.

Two outputs with their own points, the equation inside and the value on the edge, are a `ng.Product`. The loss is a
sum of squares whose metric is very badly conditioned: first-order methods stall, the natural gradient does not
(Müller & Zeinhofer 2023 found the same). One run, two cores, 20 seconds each, one seed; the damping was picked on
this seed among a few, Adam ran at two constant rates without a schedule:

    python examples/physics.py
    natural gradient      133 steps in 20 s: relative error 9.1e-06
    Adam, rate 0.01     28659 steps in 20 s: relative error 5.4e-04
    Adam, rate 0.001    32549 steps in 20 s: relative error 8.7e-04
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import optax

import natgrad as ng


def u(params, point):
    """Return the solution at one point."""
    return jnp.tanh(point @ params["w"] + params["b"]) @ params["v"] + params["c"]


def model(params, points):
    """Return (−Δu inside, u on the edge)."""
    inside, edge = points
    laplacian = jax.vmap(lambda p: jnp.trace(jax.hessian(partial(u, params))(p)))
    return -laplacian(inside), jax.vmap(partial(u, params))(edge)


def exact(points):
    return jnp.prod(jnp.sin(jnp.pi * points), axis=-1)


def data(side=20):
    """Return a grid inside and on the edge, f inside and 0 on the edge."""
    line = jnp.linspace(0, 1, side)
    grid = jnp.stack(jnp.meshgrid(line[1:-1], line[1:-1]), axis=-1).reshape(-1, 2)
    flat, full = jnp.zeros(side), jnp.ones(side)
    sides = [(line, flat), (line, full), (flat, line), (full, line)]
    edge = jnp.concatenate([jnp.stack(pair, axis=-1) for pair in sides])
    return (grid, edge), (2 * jnp.pi**2 * exact(grid), jnp.zeros(len(edge)))


def init(key, hidden=32):
    k1, k2, k3 = jax.random.split(key, 3)
    return {
        "w": jax.random.normal(k1, (2, hidden)),
        "b": jax.random.normal(k2, (hidden,)),
        "v": jax.random.normal(k3, (hidden,)) / hidden**0.5,
        "c": jnp.zeros(()),
    }


def error(params):
    """Return ‖u − u*‖ / ‖u*‖ on a finer grid."""
    line = jnp.linspace(0, 1, 71)
    points = jnp.stack(jnp.meshgrid(line, line), axis=-1).reshape(-1, 2)
    gap = jax.vmap(partial(u, params))(points) - exact(points)
    return float(jnp.linalg.norm(gap) / jnp.linalg.norm(exact(points)))


LIKELIHOOD = ng.Product(ng.Gaussian(), ng.Gaussian(), weights=(1.0, 100.0))


def natural(batch, seconds):
    """Return the natural gradient's parameters after so many seconds (compilation apart), and its steps."""
    opt = ng.natural_gradient(
        model,
        LIKELIHOOD,
        search=ng.LineSearch(),
        solver=ng.CG(maxiter=500, rtol=1e-10),
        damping=ng.Constant(1e-6),
    )
    return _race(opt.step, opt.init, batch, seconds)


def adam(batch, seconds, rate=1e-3):
    """Return the same for Adam."""
    tx = optax.adam(rate)

    def loss(params, batch):
        nll = LIKELIHOOD.nll(model(params, batch[0]), batch[1])
        return sum(c * jnp.mean(part) for c, part in zip(LIKELIHOOD.weights, nll, strict=True))

    @jax.jit
    def step(params, state, batch):
        value, gradient = jax.value_and_grad(loss)(params, batch)
        updates, state = tx.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    return _race(step, tx.init, batch, seconds)


def _race(step, init_state, batch, seconds):
    params = init(jax.random.key(0))
    state = init_state(params)
    jax.block_until_ready(step(params, state, batch))  # compile
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        params, state, _ = jax.block_until_ready(step(params, state, batch))
        steps += 1
    return params, steps


def main(seconds=20.0, side=20):
    """Return each method's relative error after the same time."""
    with jax.enable_x64(True):
        batch, errors = data(side), {}
        methods = {"natural gradient": natural}
        methods |= {f"Adam, rate {rate}": partial(adam, rate=rate) for rate in (1e-2, 1e-3)}
        for name, method in methods.items():
            params, steps = method(batch, seconds)
            errors[name] = error(params)
            print(
                f"{name:18s} {steps:6d} steps in {seconds:g} s: relative error {errors[name]:.1e}", flush=True
            )
    return errors


if __name__ == "__main__":
    main()
