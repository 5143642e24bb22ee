"""A plateau: two hidden units that start alike. Gradient descent stalls on it; the natural gradient walks off.

A student with two hidden units learns from a teacher with two. While the student's units share their weights it
is a network with one unit, and the loss is flat in the direction that would tell them apart: a saddle around
which gradient descent spends most of its time (Saad & Solla 1995; Amari 1998). The Fisher metric is nearly
singular in just that direction, so the natural gradient takes long steps along it.

    python examples/plateau.py [picture.png]
"""

import helper
import jax
import jax.numpy as jnp

import natgrad as ng

LEFT = 0.02
"""The plateau is left once the loss is below this; on it the loss is about 0.063."""


def committee(params, x):
    """A soft committee machine: the sum of its hidden units."""
    return jnp.sum(jnp.tanh(x @ params["w"]), axis=1, keepdims=True)


def losses(opt, params, batch, steps):
    """Return the loss before each of `steps` steps."""

    def step(carry, _):
        params, state, info = opt.step(*carry, batch)
        return (params, state), info.loss

    return jax.jit(lambda p: jax.lax.scan(step, (p, opt.init(p)), None, steps)[1])(params)


def run(steps):
    """Return each method's losses on the same data from the same start."""
    teacher = {"w": jnp.array([[1.5, 0.0], [0.0, 1.5], [0.5, -0.5]])}
    x = jax.random.normal(jax.random.key(0), (500, 3))
    # Almost the same weights in both units.
    start = {"w": jnp.full((3, 2), 0.3) + 1e-4 * jax.random.normal(jax.random.key(1), (3, 2))}
    damping = ng.LevenbergMarquardt(0.01)
    methods = {
        "natural gradient": ng.natural_gradient(committee, ng.Gaussian(), learning_rate=0.5, damping=damping)
    }
    for rate in (1.0, 0.1):  # 1 is about the largest at which gradient descent does not swing.
        name = f"gradient descent, rate {rate}"
        methods[name] = ng.sgd(committee, ng.Gaussian(), learning_rate=rate)
    return {name: losses(opt, start, (x, committee(teacher, x)), steps) for name, opt in methods.items()}


def main(out=None, steps=1000):
    """Run, print when each method leaves the plateau and save the figure; return those steps."""
    curves, left = run(steps), {}
    for name, curve in curves.items():
        below = jnp.flatnonzero(curve < LEFT)
        left[name] = int(below[0]) if below.size else None
        print(f"{name:30s} leaves the plateau at step {left[name]}")
    shown = {name: (jnp.arange(1, steps + 1), jnp.maximum(y, 1e-9)) for name, y in curves.items()}
    title = "Two hidden units that start alike"
    helper.show(out, shown, title, "step", "loss", xscale="log", yscale="log")
    return left


if __name__ == "__main__":
    helper.run(main)
