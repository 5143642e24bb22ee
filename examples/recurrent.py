"""A recurrent net on a long-lag task: KNCG and Hessian-Free against Adam and momentum.

The addition task (Hochreiter & Schmidhuber 1997): each tick brings a number and a mark; two numbers are marked, one
early and one late, and the answer, their mean, is due at the end. A constant answer has a mean squared error of 1/24.

    python examples/recurrent.py [picture.png]
"""

import helper
import jax
import jax.numpy as jnp
import optax

import natgrad as ng

HIDDEN, BLIND = 64, 1 / 24


def states(params, inputs):
    """Return the pre-activations of all ticks: (examples, ticks, hidden)."""

    def tick(h, x):
        s = h @ params["w"] + x @ params["v"] + params["b"]
        return jnp.tanh(s), s

    start = jnp.zeros((inputs.shape[0], HIDDEN), inputs.dtype)
    return jnp.swapaxes(jax.lax.scan(tick, start, jnp.swapaxes(inputs, 0, 1))[1], 0, 1)


def model(params, inputs):
    return jnp.tanh(states(params, inputs)[:, -1]) @ params["u"] + params["c"]


def init(seed, incoming=15):
    """Return sparse weights: 15 incoming per unit, their scale 1.1/√15 (Martens & Sutskever 2011)."""
    keys = jax.random.split(jax.random.key(seed), 4)
    rank = jnp.argsort(jax.random.uniform(keys[0], (HIDDEN, HIDDEN)), axis=0)
    w = jax.random.normal(keys[1], (HIDDEN, HIDDEN)) * (rank < incoming)
    v, u = 0.5 * jax.random.normal(keys[2], (2, HIDDEN)), jax.random.normal(keys[3], (HIDDEN, 1))
    w, u = w * 1.1 / jnp.sqrt(incoming), u / jnp.sqrt(HIDDEN)
    return {"w": w, "v": v, "b": jnp.zeros(HIDDEN), "u": u, "c": jnp.zeros(1)}


def draw(key, count, length):
    """Return sequences and answers; the marks are in the first tenth, and from there to the middle."""
    values_key, first_key, second_key = jax.random.split(key, 3)
    values = jax.random.uniform(values_key, (count, length))
    early = max(length // 10, 1)
    first = jax.random.randint(first_key, (count, 1), 0, early)
    second = jax.random.randint(second_key, (count, 1), early, max(length // 2, early + 1))
    marks = (jnp.arange(length) == first) | (jnp.arange(length) == second)
    answers = jnp.sum(values * marks, axis=1, keepdims=True) / 2
    return jnp.stack([values, marks.astype(values.dtype)], axis=2), answers


def train(opt, length, batch, seed=0, **until):
    """Return rows of (seconds, steps, error on fresh sequences); a batch is a function of seed and step."""
    test = draw(jax.random.key(10_000 + seed), 1000, length)
    fresh = jax.jit(lambda number: draw(jax.random.fold_in(jax.random.key(seed), number), batch, length))
    return helper.race(
        opt, init(seed), fresh, lambda p: jnp.mean((model(p, test[0]) - test[1]) ** 2), **until
    )[1]


def main(length=30, seconds=30.0, out=None):
    likelihood = ng.Gaussian()
    first_order = {f"Adam, rate {rate}": optax.adam(rate) for rate in (3e-3, 1e-3)}
    first_order["momentum 0.95, rate 0.03"] = optax.sgd(0.03, 0.95, nesterov=True)
    clipped = {name: optax.chain(optax.clip_by_global_norm(1.0), tx) for name, tx in first_order.items()}
    contestants = {"KNCG": (ng.kncg(model, likelihood), 500)}
    contestants |= {n: (helper.FirstOrder(tx, model, likelihood), 100) for n, tx in clipped.items()}
    contestants["Hessian-Free"] = ng.hessian_free(model, likelihood, solver=ng.TruncatedCG(50)), 1000
    runs = {n: train(opt, length, size, seconds=seconds) for n, (opt, size) in contestants.items()}
    labels = f"Addition over {length} ticks", "processor time, s", "squared error, fresh sequences"
    helper.show(out, {n: rows[:, ::2].T for n, rows in runs.items()}, *labels, yscale="log")
    return runs


if __name__ == "__main__":
    helper.run(main)
