"""natgrad with haiku: a transformed function without its random key is the model.

python examples/frameworks/with_haiku.py
"""

import haiku as hk
import jax
import jax.numpy as jnp

import natgrad as ng


def net(x):
    return hk.Linear(1)(jnp.tanh(hk.Linear(20)(x)))


def build(seed=0):
    """Return model(params, inputs) and its first parameters."""
    transformed = hk.without_apply_rng(hk.transform(net))
    return transformed.apply, transformed.init(jax.random.key(seed), jnp.zeros((1, 2)))


def data():
    """Return points in the plane and whether their coordinates have the same sign."""
    x = jax.random.normal(jax.random.key(1), (500, 2))
    return x, (x[:, :1] * x[:, 1:] > 0).astype(x.dtype)


def train(model, params, batch, steps):
    opt = ng.natural_gradient(model, ng.Bernoulli())
    state = opt.init(params)
    for _ in range(steps):
        params, state, info = opt.step(params, state, batch)
    return params, info


if __name__ == "__main__":
    params, info = train(*build(), data(), steps=30)
    print(f"loss {info.loss:.4f}, λ {info.damping:.2g}")
