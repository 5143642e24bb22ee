"""One problem, two spaces: what a step looks like among the parameters, and among the model's predictions.

Two parameters and two inputs, so that both spaces are planes. The gradient goes downhill among the parameters, and its
path among the predictions is bent. The natural gradient heads straight for the targets there.

    python examples/two_spaces.py [picture.png]
"""

import helper
import jax
import jax.numpy as jnp
import numpy as np

import natgrad as ng

X, TARGET, START = jnp.array([[0.5], [1.5]]), jnp.array([[1.2], [0.2]]), {"a": 0.9, "b": 1.0}


def model(params, x):
    """Return 2 tanh(ax) + (1 − b)x/3: two parameters of very different effect."""
    return 2 * jnp.tanh(params["a"] * x) + (1 - params["b"]) * x / 3


def path(opt, steps):
    """Return the parameters along the way, (steps + 1, 2)."""

    def step(carry, _):
        params, state, _ = opt.step(*carry, (X, TARGET))
        return (params, state), carry[0]

    start = jax.tree.map(jnp.asarray, START)
    visited = jax.jit(lambda: jax.lax.scan(step, (start, opt.init(start)), None, steps + 1)[1])()
    return jnp.stack([visited["a"], visited["b"]], axis=1)


def predictions(points):
    return jax.vmap(lambda p: model({"a": p[0], "b": p[1]}, X)[:, 0])(points)


def main(steps=60, out=None):
    """Return both paths, among the parameters and among the predictions."""
    damping = ng.Constant(1e-5)
    opts = {"natural gradient": ng.natural_gradient(model, ng.Gaussian(), learning_rate=0.1, damping=damping)}
    opts["gradient"] = ng.sgd(model, ng.Gaussian(), learning_rate=0.3)
    paths = {name: path(opt, steps) for name, opt in opts.items()}
    if out:
        draw(out, paths)
    return {name: (points, predictions(points)) for name, points in paths.items()}


def draw(out, paths):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    every = np.concatenate([np.asarray(points) for points in paths.values()])
    low, high = every.min(0) - 0.4, every.max(0) + 0.4
    a, b = np.meshgrid(np.linspace(low[0], high[0], 80), np.linspace(low[1], high[1], 80))
    y = np.asarray(predictions(jnp.stack([a.ravel(), b.ravel()], axis=1)))
    loss = np.sum((y - TARGET[:, 0]) ** 2, axis=1).reshape(a.shape)
    left.contour(a, b, np.sqrt(loss), 14, colors="0.85")
    for radius in np.linspace(0.1, 1.6, 16):
        right.add_patch(plt.Circle(TARGET[:, 0], radius, fill=False, color="0.85"))
    for color, (name, points) in zip(helper.COLORS, paths.items(), strict=False):
        for axes, shown in ((left, points), (right, predictions(points))):
            axes.plot(*shown.T, "o-", color=color, ms=3, lw=1.6, label=name)
            axes.plot(*shown[0], "ko", ms=6)
    right.plot(*TARGET[:, 0], "k*", ms=12, label="the targets")
    left.set(title="Parameters", xlabel="a", ylabel="b")
    right.set(title="Predictions", xlabel="prediction at x = 0.5", ylabel="prediction at x = 1.5")
    right.set_aspect("equal")
    right.legend(frameon=False, loc="lower right")
    figure.savefig(out, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    helper.run(main)
