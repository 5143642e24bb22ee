"""The networks of the paper: pure functions of their parameters, and how those parameters start."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import jax
import numpy as np
from jax import Array

Layers = list[dict[str, Array]]

INCOMING = 15


@dataclass(frozen=True)
class Autoencoder:
    """A deep autoencoder whose decoder mirrors its encoder; weights are not tied.

    Sigmoid units throughout, except that the code is linear and the output is left as logits:
    the sigmoid of the output belongs to the likelihood.
    """

    encoder: tuple[int, ...]
    """Units from the input to the code: (784, 400, 200, 100, 50, 25, 6) in the paper."""

    @property
    def units(self) -> tuple[int, ...]:
        """Units of every layer, from input to output."""
        return self.encoder + self.encoder[-2::-1]

    def __call__(self, params: Layers, inputs: Array) -> Array:
        """Return the logits of the reconstruction, one row per input."""
        code = len(self.encoder) - 2
        values = inputs
        for number, layer in enumerate(params):
            values = values @ layer["weights"] + layer["biases"]
            if number not in (code, len(params) - 1):
                values = jax.nn.sigmoid(values)
        return values

    def init(self, seed: int) -> Layers:
        """Return sparse initial parameters, float32, a pure function of the seed."""
        return sparse_init(self.units, seed)


def sparse_init(units: Sequence[int], seed: int, incoming: int = INCOMING) -> Layers:
    """Give each unit `incoming` weights from N(0, 1); the others and the biases are zero (Martens 2010).

    The inputs that receive a weight are drawn with replacement, as in Martens' code, so a unit may
    have a few less; a weight drawn twice keeps the second value.
    """
    generator = np.random.default_rng([seed, 0x5EED])
    layers = []
    for fan_in, fan_out in pairwise(units):
        weights = np.zeros((fan_in, fan_out), np.float32)
        for _ in range(incoming):
            chosen = generator.integers(fan_in, size=fan_out)
            weights[chosen, np.arange(fan_out)] = generator.standard_normal(fan_out)
        layers.append({"weights": jax.numpy.asarray(weights), "biases": jax.numpy.zeros(fan_out, np.float32)})
    return layers


def parameter_count(params: Layers) -> int:
    """Return the number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
