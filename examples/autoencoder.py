"""A deep autoencoder: eight layers squeeze a digit of 64 pixels through three numbers and paint it again.

Badly conditioned on purpose, as the autoencoders on which Hessian-Free made its name: the gradient of the first layers
comes through seven others. The natural gradient sees all cases in every step; SGD and Adam take small batches. All
minimize the cross-entropy for the same time; the squared error is what is shown, as in the paper. One seed, 8 seconds
each by the processor's clock, as the machine was shared; nothing was tuned but what the names say:

    python examples/autoencoder.py
    the mean picture         squared error 4.689
    natural gradient         squared error 1.095, on new digits 1.970 (45 steps)
    Adam, rate 0.01          squared error 0.945, on new digits 2.057 (5215 steps)
    Adam, rate 0.001         squared error 1.180, on new digits 1.817 (7538 steps)
    momentum 0.9, rate 0.1   squared error 4.721, on new digits 4.715 (10016 steps)

The natural gradient is level with Adam, without a rate to choose; momentum has not left the mean picture.
"""

import math
import time
from functools import partial
from itertools import pairwise

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
    sizes = pairwise(UNITS)
    return [
        (jax.random.normal(k, s) / s[0] ** 0.5, jnp.zeros(s[1])) for k, s in zip(keys, sizes, strict=True)
    ]


def data():
    """Return 1,500 digits to learn and 297 to look at, pixels in [0, 1]."""
    pixels = jnp.asarray(load_digits().data / 16, jnp.float32)
    return pixels[:1500], pixels[1500:]


@jax.jit
def squared_error(params, x):
    """Return the squared error of a picture, summed over its pixels."""
    return jnp.mean(jnp.sum((LIKELIHOOD.mean(model(params, x)) - x) ** 2, axis=1))


def natural(x, **until):
    """Return the parameters and steps of the natural gradient on all cases, with a line search."""
    opt = ng.natural_gradient(model, LIKELIHOOD, solver=ng.CG(maxiter=50), search=ng.LineSearch())
    return race(lambda params, state, _: opt.step(params, state, (x, x))[:2], opt.init, **until)


def first_order(tx, x, batch=100, **until):
    """Return the same for an optax optimizer on small batches."""

    @jax.jit
    def step(params, state, count):
        chosen = jax.random.randint(jax.random.fold_in(jax.random.key(1), count), (batch,), 0, len(x))
        loss = lambda p: jnp.mean(LIKELIHOOD.nll(model(p, x[chosen]), x[chosen]))  # noqa: E731
        updates, state = tx.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    return race(step, tx.init, **until)


def race(step, init_state, seconds=math.inf, steps=math.inf):
    """Return the parameters after so many seconds (compilation apart) or steps, and the steps taken."""
    params = init(jax.random.key(0))
    state = init_state(params)
    jax.block_until_ready(step(params, state, 0))
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds and count < steps:
        params, state = jax.block_until_ready(step(params, state, count))
        count += 1
    return params, count


def main(seconds=8.0):
    """Return each method's squared error on the training cases."""
    x, fresh = data()
    methods = {"natural gradient": natural}
    methods |= {f"Adam, rate {rate}": partial(first_order, optax.adam(rate)) for rate in (1e-2, 1e-3)}
    methods["momentum 0.9, rate 0.1"] = partial(first_order, optax.sgd(0.1, 0.9, nesterov=True))
    errors = {"the mean picture": float(jnp.mean(jnp.sum((x - x.mean(axis=0)) ** 2, axis=1)))}
    print(f"{'the mean picture':24s} squared error {errors['the mean picture']:.3f}")
    for name, method in methods.items():
        params, steps = method(x, seconds=seconds)
        errors[name] = float(squared_error(params, x))
        print(
            f"{name:24s} squared error {errors[name]:.3f}, on new digits {squared_error(params, fresh):.3f}"
            f" ({steps} steps)",
            flush=True,
        )
    return errors


if __name__ == "__main__":
    main()
