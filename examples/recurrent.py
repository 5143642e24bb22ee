"""A recurrent net on a long-lag task: Hessian-Free and structural damping against momentum.

The addition task (Hochreiter & Schmidhuber 1997): each tick brings a number and a mark; two numbers are marked, one
early and one late, and the answer, their mean, is due at the end. A constant answer has a mean squared error of 1/24.

    python examples/recurrent.py --length 30
    python examples/recurrent.py --length 100 --seconds 300 --out recurrent.png
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import natgrad as ng

HIDDEN = 64
BLIND = 1 / 24


def states(params, inputs):
    """Return the pre-activations of all ticks: (examples, ticks, hidden)."""

    def tick(h, x):
        s = h @ params["w"] + x @ params["v"] + params["b"]
        return jnp.tanh(s), s

    start = jnp.zeros((inputs.shape[0], HIDDEN), inputs.dtype)
    return jnp.swapaxes(jax.lax.scan(tick, start, jnp.swapaxes(inputs, 0, 1))[1], 0, 1)


def model(params, inputs):
    return jnp.tanh(states(params, inputs)[:, -1]) @ params["u"] + params["c"]


def tanh_logits(params, inputs):
    """Twice the pre-activation: tanh(s) = 2σ(2s) − 1, so structural damping weighs s by 1 − tanh²(s)."""
    return 2 * states(params, inputs)


def init(seed, incoming=15):
    """Return sparse weights: 15 incoming a unit, their scale 1/√15 (Martens & Sutskever 2011)."""
    keys = jax.random.split(jax.random.key(seed), 4)
    rank = jnp.argsort(jax.random.uniform(keys[0], (HIDDEN, HIDDEN)), axis=0)
    w = jax.random.normal(keys[1], (HIDDEN, HIDDEN)) * (rank < incoming)
    return {
        "w": w * 1.1 / jnp.sqrt(incoming),
        "v": 0.5 * jax.random.normal(keys[2], (2, HIDDEN)),
        "b": jnp.zeros(HIDDEN),
        "u": jax.random.normal(keys[3], (HIDDEN, 1)) / jnp.sqrt(HIDDEN),
        "c": jnp.zeros(1),
    }


def draw(key, count, length):
    """Return sequences and answers; the marks are in the first tenth and the first half of the rest."""
    values_key, first_key, second_key = jax.random.split(key, 3)
    values = jax.random.uniform(values_key, (count, length))
    early = max(length // 10, 1)
    first = jax.random.randint(first_key, (count,), 0, early)
    second = jax.random.randint(second_key, (count,), early, max(length // 2, early + 1))
    ticks = jnp.arange(length)
    marks = (ticks == first[:, None]) | (ticks == second[:, None])
    answers = jnp.sum(values * marks, axis=1, keepdims=True) / 2
    return jnp.stack([values, marks.astype(values.dtype)], axis=2), answers


def hessian_free(structural, examples, iterations=50):
    metric = ng.GaussNewton()
    if structural:
        metric = metric + ng.StructuralDamping(tanh_logits, mu=1 / 30)
    return ng.hessian_free(
        model,
        ng.Gaussian(),
        solver=ng.TruncatedCG(iterations),
        preconditioner=ng.Identity(),
        metric=metric,
        damping=ng.LevenbergMarquardt(0.1),
    )


class Momentum:
    """Nesterov momentum with clipped gradients, in the shape of a natgrad optimizer."""

    def __init__(self, rate):
        self.update = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(rate, 0.95, nesterov=True))
        self.loss = lambda params, x, t: jnp.mean(jnp.sum((model(params, x) - t) ** 2, axis=1)) / 2

    def init(self, params):
        return self.update.init(params)

    def step(self, params, state, batch):
        loss, gradient = jax.value_and_grad(self.loss)(params, *batch)
        updates, state = self.update.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, loss


def train(opt, length, seconds, batch, seed=0, chunk=None, steps_at_most=None):
    """Return (training seconds, error on fresh sequences) pairs; batches are pure functions of (seed, step)."""
    natural = isinstance(opt, ng.Optimizer)
    params = init(seed)
    state = opt.init(params)
    test = draw(jax.random.key(10_000 + seed), 1000, length)
    error = jax.jit(lambda p: jnp.mean((model(p, test[0]) - test[1]) ** 2))
    repeats = 1 if natural else 20

    @jax.jit
    def steps(params, state, first):
        def one(carry, number):
            params, state = carry
            key = jax.random.fold_in(jax.random.key(seed), number)
            data = draw(key, batch, length)
            options = {}
            if natural:
                part = jax.tree.map(lambda leaf: leaf[: chunk or batch], data)
                options = {"metric_inputs": part[0], "ratio_batch": part}
            params, state, _ = opt.step(params, state, data, **options)
            return (params, state), None

        return jax.lax.scan(one, (params, state), first + jnp.arange(repeats))[0]

    jax.block_until_ready(steps(params, state, 0))
    spent, number, curve = 0.0, 0, [(0.0, float(error(params)))]
    while spent < seconds and number < (steps_at_most or np.inf):
        start = time.perf_counter()
        params, state = jax.block_until_ready(steps(params, state, number))
        spent += time.perf_counter() - start
        number += repeats
        if spent > 1.15 * curve[-1][0] + 0.2:
            curve.append((spent, float(error(params))))
    curve.append((spent, float(error(params))))
    return np.array(curve)


def main(length=30, seconds=60.0, seeds=1, rates=(0.1, 0.03, 0.01), out=None):
    print(f"addition over {length} ticks, {seconds:.0f} s of training each; a constant answer: {BLIND:.4f}")
    contestants = {
        "HF with structural damping": (lambda: hessian_free(True, length), 1000, 500),
        "HF without": (lambda: hessian_free(False, length), 1000, 500),
    }
    contestants |= {f"momentum, rate {rate}": (lambda rate=rate: Momentum(rate), 100, None) for rate in rates}
    curves = {}
    for name, (build, batch, chunk) in contestants.items():
        runs = [train(build(), length, seconds, batch, seed, chunk) for seed in range(seeds)]
        curves[name] = runs
        ends = [run[-1, 1] for run in runs]
        print(f"  {name:28s}", "  ".join(f"{end:.5f}" for end in ends), flush=True)
    if out is not None:
        plot(out, curves, length)
    return curves


def plot(out, curves, length):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    colors = ["#D55E00", "#E69F00", "#0072B2", "#56B4E9", "#999999"]
    for color, (name, runs) in zip(colors, curves.items(), strict=False):
        for i, run in enumerate(runs):
            axes.plot(run[:, 0], run[:, 1], color=color, lw=1.5, label=name if i == 0 else None)
    axes.axhline(BLIND, color="0.7", lw=1, ls=":")
    axes.set(xlabel="training time, s", ylabel="mean squared error, fresh sequences", yscale="log")
    axes.set_title(f"Addition over {length} ticks", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--length", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out")
    main(**vars(parser.parse_args()))
