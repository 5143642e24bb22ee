"""Tiny models with float64 parameters: tens of numbers each, so that every Jacobian can be written down."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Case(NamedTuple):
    """A model, its parameters and seven inputs (a prime number, so that chunks are ragged)."""

    model: Callable[..., Any]
    params: Any
    inputs: Any

    def cast(self, dtype) -> "Case":
        def to(leaf):
            return leaf.astype(dtype)

        return Case(self.model, jax.tree.map(to, self.params), jax.tree.map(to, self.inputs))


def _normal(seed: int, *shape: int, scale: float = 0.7):
    return scale * jax.random.normal(jax.random.key(seed), shape, jnp.float64)


def dense(layer, x):
    return x @ layer["w"] + layer["b"]


def layers(seed: int, *sizes: int):
    return [
        {"w": _normal(seed + i, a, b), "b": _normal(seed + 50 + i, b, scale=0.2)}
        for i, (a, b) in enumerate(pairwise(sizes))
    ]


def mlp(params, x):
    for layer in params[:-1]:
        x = jnp.tanh(dense(layer, x))
    return dense(params[-1], x)


def conv(params, images):
    hidden = jax.lax.conv_general_dilated(
        images, params["kernel"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    hidden = jax.nn.softplus(hidden + params["b"])
    return dense(params["top"], hidden.reshape(hidden.shape[0], -1))


def recurrent(params, sequences):
    """Outputs at every time step, from weights shared over time."""

    def step(state, x):
        state = jnp.tanh(x @ params["in"] + state @ params["over"])
        return state, dense(params["out"], state)

    start = jnp.zeros((sequences.shape[0], params["over"].shape[0]), sequences.dtype)
    _, outputs = jax.lax.scan(step, start, jnp.moveaxis(sequences, 1, 0))
    return jnp.moveaxis(outputs, 0, 1)


def autoencoder(params, x):
    """Encoder and decoder tied: the decoder uses the encoder's first matrix, transposed."""
    code = dense(params["code"], jnp.tanh(x @ params["tied"]))
    return jnp.tanh(dense(params["up"], code)) @ params["tied"].T + params["b"]


MODELS = {
    "mlp": Case(mlp, layers(0, 3, 4, 3), _normal(10, 7, 3)),
    "conv": Case(
        conv,
        {"kernel": _normal(1, 3, 3, 1, 2), "b": _normal(2, 2), "top": layers(3, 8, 3)[0]},
        _normal(11, 7, 4, 4, 1),
    ),
    "recurrent": Case(
        recurrent,
        {"in": _normal(4, 2, 3), "over": _normal(5, 3, 3), "out": layers(6, 3, 3)[0]},
        _normal(12, 7, 4, 2),
    ),
    "autoencoder": Case(
        autoencoder,
        {"tied": _normal(7, 5, 3), "code": layers(8, 3, 2)[0], "up": layers(9, 2, 3)[0], "b": _normal(13, 5)},
        _normal(14, 7, 5),
    ),
}

WEIGHTS = jnp.array([0.5, 2.0, 1.0, 0.0, 3.0, 0.25, 1.25])


def targets_for(likelihood, outputs, seed: int = 0):
    """Draw targets from the model's own distribution at doubled outputs: plausible, and not the mean."""
    return likelihood.sample(jax.random.key(seed), jax.tree.map(lambda r: 2 * r, outputs))
