"""natgrad with flax.nnx: split the parameters off the module, and merge them again inside the model function.

python examples/frameworks/with_nnx.py
"""

import jax
import jax.numpy as jnp
from flax import nnx

import natgrad as ng


class Net(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(2, 20, rngs=rngs)
        self.out = nnx.Linear(20, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(jnp.tanh(self.hidden(x)))


def build(seed=0):
    """Return model(params, inputs) and its first parameters."""
    graph, params, rest = nnx.split(Net(nnx.Rngs(seed)), nnx.Param, ...)

    def model(params, inputs):
        return nnx.merge(graph, params, rest)(inputs)

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
