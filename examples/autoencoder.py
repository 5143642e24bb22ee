"""A deep autoencoder: eight layers squeeze a digit of 64 pixels through three numbers and paint it again.

Badly conditioned on purpose, as the autoencoders on which Hessian-Free made its name: the gradient of the first layers
comes through seven others. KNCG against Adam and momentum for the same processor time. All minimize the cross-entropy;
the squared error is shown, as in the paper. Nothing was tuned but what the names say.

    python examples/autoencoder.py [picture.png]
"""

from itertools import pairwise

import helper
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import natgrad as ng

UNITS = (64, 50, 25, 12, 3, 12, 25, 50, 64)
LIKELIHOOD = ng.Bernoulli()


def model(params, x):
    """Return the logits of the reconstruction: tanh units, a linear code, no activation at the end."""
    for number, (w, b) in enumerate(params, start=1):
        x = x @ w + b
        if number not in (len(params) // 2, len(params)):
            x = jnp.tanh(x)
    return x


def init(key):
    keys = jax.random.split(key, len(UNITS) - 1)
    shapes = zip(keys, pairwise(UNITS), strict=True)
    return [(jax.random.normal(k, s) / s[0] ** 0.5, jnp.zeros(s[1])) for k, s in shapes]


def data():
    """Return 1,500 digits to learn and 297 to look at, pixels in [0, 1]."""
    pixels = jnp.asarray(load_digits().data / 16, jnp.float32)
    return pixels[:1500], pixels[1500:]


def squared_error(params, x):
    """Return the squared error of a picture, summed over its pixels."""
    return jnp.mean(jnp.sum((LIKELIHOOD.mean(model(params, x)) - x) ** 2, axis=1))


def train(opt, x, batch, **until):
    @jax.jit
    def draw(number):
        rows = jax.random.choice(
            jax.random.fold_in(jax.random.key(1), number), len(x), (batch,), replace=False
        )
        return x[rows], x[rows]

    return helper.race(opt, init(jax.random.key(0)), draw, lambda params: squared_error(params, x), **until)


def main(seconds=8.0, out=None):
    """Return each method's squared error on the training cases."""
    x, fresh = data()
    contestants = {"KNCG": (ng.kncg(model, LIKELIHOOD), 500)}
    rules = {f"Adam, rate {rate}": optax.adam(rate) for rate in (1e-2, 1e-3)}
    rules["momentum 0.9, rate 0.1"] = optax.sgd(0.1, 0.9, nesterov=True)
    contestants |= {n: (helper.FirstOrder(tx, model, LIKELIHOOD), 100) for n, tx in rules.items()}
    curves = {}
    for name, (opt, batch) in contestants.items():
        params, rows = train(opt, x, batch, seconds=seconds)
        curves[name] = rows[:, 0], rows[:, 2]
        print(f"{name:32s} on new digits: {squared_error(params, fresh):.3f}", flush=True)
    labels = "Digits through three numbers", "processor time, s", "squared error per digit"
    helper.show(out, curves, *labels, xscale="log", yscale="log", xlim=(0.05, None))
    return {name: y[-1] for name, (_, y) in curves.items()}


if __name__ == "__main__":
    helper.run(main)
