"""A plateau: two hidden units that start alike. Gradient descent stalls on it; the natural gradient walks off.

A student with two hidden units learns from a teacher with two. While the student's units share their weights it
is a network with one unit, and the loss is flat in the direction that would tell them apart: a saddle around
which gradient descent spends most of its time (Saad & Solla 1995; Amari 1998). The Fisher metric is nearly
singular in just that direction, so the natural gradient takes long steps along it.

    python examples/plateau.py
"""

import sys
from pathlib import Path

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
    batch = (x, committee(teacher, x))
    # Almost the same weights in both units.
    start = {"w": jnp.full((3, 2), 0.3) + 1e-4 * jax.random.normal(jax.random.key(1), (3, 2))}
    # A rate of 1 is about the largest at which gradient descent does not swing.
    methods = {
        f"gradient descent, rate {rate}": ng.sgd(committee, ng.Gaussian(), learning_rate=rate)
        for rate in (0.1, 1.0)
    }
    methods["natural gradient"] = ng.natural_gradient(
        committee, ng.Gaussian(), learning_rate=0.5, damping=ng.LevenbergMarquardt(0.01)
    )
    return {name: losses(opt, start, batch, steps) for name, opt in methods.items()}


def first_below(curve, level):
    """Return the first step at which the loss is below the level, or None."""
    below = jnp.flatnonzero(curve < level)
    return int(below[0]) if below.size else None


def main(out=None, steps=1000):
    """Run, print when each method leaves the plateau and save the figure; return those steps."""
    curves = run(steps)
    left = {name: first_below(curve, LEFT) for name, curve in curves.items()}
    for name, step in left.items():
        print(
            f"{name:30s} {'still on the plateau' if step is None else f'leaves the plateau at step {step}'}"
        )
    if out is not None:
        draw(curves, Path(out))
    return left


def draw(curves, out):
    """Plot the losses against the step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.6, 3.4), layout="constrained")
    for (name, curve), color in zip(curves.items(), ("tab:orange", "tab:red", "tab:blue"), strict=True):
        axes.semilogy(1 + jnp.arange(len(curve)), jnp.maximum(curve, 1e-12), label=name, color=color)
    axes.set(xscale="log", xlabel="step", ylabel="loss", ylim=(1e-9, None))
    axes.set_title("Two hidden units that start alike")
    figure.legend(frameon=False, loc="outside lower center", ncols=2)
    figure.savefig(out, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "plateau.png")
