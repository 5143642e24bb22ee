"""What the examples share: first-order optimizers in natgrad's shape, training by the clock, one way to draw curves."""

import math
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

COLORS = ("#D55E00", "#0072B2", "#56B4E9", "#009E73", "#999999")


class FirstOrder:
    """An optax optimizer on the likelihood's loss: `init` and `step` as natgrad's have them."""

    def __init__(self, tx, model, likelihood):
        self.tx, self.init = tx, tx.init

        def loss(params, batch):
            losses = likelihood.nll(model(params, batch[0]), batch[1])
            parts = losses if isinstance(losses, tuple) else (losses,)
            shares = getattr(likelihood, "weights", None) or (1.0,) * len(parts)
            return sum(c * jnp.mean(part) for c, part in zip(shares, parts, strict=True))

        def step(params, state, batch):
            value, gradient = jax.value_and_grad(loss)(params, batch)
            updates, state = tx.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, value

        self.step = step


def race(opt, params, draw, error, seconds=math.inf, steps=math.inf):
    """Train on `draw(0)`, `draw(1)`, … and return what to keep, and rows of (processor's seconds, steps, error)."""
    state, step, error = opt.init(params), jax.jit(opt.step), jax.jit(error)
    jax.block_until_ready(step(params, state, draw(0)))
    kept, spent, count = params, 0.0, 0
    rows = [(spent, count, float(error(kept)))]
    while spent < seconds and count < steps:
        batch = jax.block_until_ready(draw(count))  # Neither this nor compiling nor the error counts.
        start = time.process_time()
        params, state, _ = jax.block_until_ready(step(params, state, batch))
        spent += time.process_time() - start
        count += 1
        kept = getattr(state, "average", params)
        if spent > 1.2 * rows[-1][0] + 0.02:
            rows.append((spent, count, float(error(kept))))
    rows.append((spent, count, float(error(kept))))
    return kept, np.array(rows)


def show(out, curves, title, xlabel, ylabel, **axes_settings):
    """Print the last values of {name: (x, y)}, and with `out` save a picture; the first is drawn thickest."""
    for name, (x, y) in curves.items():
        print(f"{name:32s} {ylabel}: {float(y[-1]):.4g} ({xlabel}: {float(x[-1]):.4g})")
    if out is None:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for number, (name, (x, y)) in enumerate(curves.items()):
        axes.plot(x, y, label=name, color=COLORS[number % len(COLORS)], lw=1.4 if number else 2.4)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set(xlabel=xlabel, ylabel=ylabel, **axes_settings)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=130)
    plt.close(figure)


def run(main):
    """Call `main`; with an argument on the command line, `main(out=argument)`, which draws."""
    main(**({"out": Path(sys.argv[1])} if len(sys.argv) > 1 else {}))
