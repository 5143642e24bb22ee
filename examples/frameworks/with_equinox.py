"""natgrad with equinox: partition the module into arrays and the rest, and combine them in the model function.

python examples/frameworks/with_equinox.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp

import natgrad as ng


def build(seed=0):
    """Return model(params, inputs) and its first parameters."""
    net = eqx.nn.MLP(2, 1, width_size=20, depth=1, activation=jnp.tanh, key=jax.random.key(seed))
    params, rest = eqx.partition(net, eqx.is_inexact_array)

    def model(params, inputs):
        return jax.vmap(eqx.combine(params, rest))(inputs)

    return model, params


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
