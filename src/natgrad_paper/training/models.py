"""The networks of the experiments: pure functions of their parameters, and how those parameters start."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Layers = list[dict[str, Array]]

INCOMING = 15
Hidden = Literal["sigmoid", "relu"]


@dataclass(frozen=True)
class Autoencoder:
    """A deep autoencoder whose decoder mirrors its encoder; weights are not tied.

    The code is linear and the output is left as logits: the sigmoid of the output belongs to the likelihood.
    """

    encoder: tuple[int, ...]
    """Units from the input to the code: (784, 400, 200, 100, 50, 25, 6) in the paper."""
    hidden: Hidden = "sigmoid"
    """The function of the hidden units; the paper's are sigmoid."""

    @property
    def units(self) -> tuple[int, ...]:
        """Units of every layer, from input to output."""
        return self.encoder + self.encoder[-2::-1]

    def __call__(self, params: Layers, inputs: Array) -> Array:
        """Return the logits of the reconstruction, one row per input."""
        code = len(self.encoder) - 2
        unit = {"sigmoid": jax.nn.sigmoid, "relu": jax.nn.relu}[self.hidden]
        values = inputs
        for number, layer in enumerate(params):
            values = values @ layer["weights"] + layer["biases"]
            if number not in (code, len(params) - 1):
                values = unit(values)
        return values

    def init(self, seed: int) -> Layers:
        """Return initial parameters, float32, a pure function of the seed: sparse ones for sigmoid units."""
        return (sparse_init if self.hidden == "sigmoid" else uniform_init)(self.units, seed)


@dataclass(frozen=True)
class ConvNet:
    """A convolution, max pooling, a dense layer and the outputs: sigmoid units, the output left as logits.

    The pooling windows do not overlap; pixels left over at the right and bottom edges are not used. The sigmoid is
    monotone, so it comes after the pooling, which gives the same numbers with fewer sigmoids.
    """

    side: int
    """Side of the square pictures, which come as rows of pixels: 48 in the paper."""
    filters: int
    window: int
    """Side of the filters: 14 in the paper."""
    pool: int
    """Side of the pooling windows."""
    units: int
    outputs: int

    @property
    def cells(self) -> int:
        """Pooled cells along a side."""
        return (self.side - self.window + 1) // self.pool

    @property
    def places(self) -> np.ndarray:
        """The pixels under the filters: (cells, places of a pooling window, pixels of a filter)."""
        cell, within, pixel = (np.arange(n) for n in (self.cells * self.pool, self.pool, self.window))
        corner = cell[:: self.pool, None] + within
        along = corner[..., None] + pixel  # of shape (cells, pool, window), along one side
        both = self.side * along[:, None, :, None, :, None] + along[None, :, None, :, None, :]
        return both.reshape(self.cells**2, self.pool**2, self.window**2)

    def __call__(self, params: Layers, inputs: Array) -> Array:
        """Return the logits, one row per input."""
        convolution, *dense = params
        # This is one product of matrices: for filters this large it is many times as fast as XLA's convolution on CPUs.
        maps = inputs[:, self.places] @ convolution["weights"]
        values = (maps.max(axis=2) + convolution["biases"]).reshape(len(maps), -1)
        for layer in dense:
            values = jax.nn.sigmoid(values) @ layer["weights"] + layer["biases"]
        return values

    def init(self, seed: int) -> Layers:
        """Return sparse initial parameters, float32, a pure function of the seed."""
        pooled = self.filters * self.cells**2
        shapes = (self.window**2, self.filters), (pooled, self.units), (self.units, self.outputs)
        return sparse_layers(shapes, seed)


@dataclass(frozen=True)
class Classifier:
    """Layers of tanh units, and the logits of the classes: the softmax belongs to the likelihood."""

    units: tuple[int, ...]
    """From the input to the classes: (1024, 500, 62) in the paper."""

    def __call__(self, params: Layers, inputs: Array) -> Array:
        """Return the logits, one row per input."""
        *hidden, last = params
        for layer in hidden:
            inputs = jnp.tanh(inputs @ layer["weights"] + layer["biases"])
        return inputs @ last["weights"] + last["biases"]

    def init(self, seed: int) -> Layers:
        """Return uniform initial weights within ±√(6 / (fan in + fan out)), float32 (Glorot and Bengio 2010)."""
        generator = np.random.default_rng([seed, 0x0DE4])
        layers = []
        for fan_in, fan_out in pairwise(self.units):
            reach = np.sqrt(6 / (fan_in + fan_out))
            weights = generator.uniform(-reach, reach, (fan_in, fan_out)).astype(np.float32)
            layers.append({"weights": jnp.asarray(weights), "biases": jnp.zeros(fan_out, jnp.float32)})
        return layers


@dataclass(frozen=True)
class Recurrent:
    """Tanh units that see a sequence tick by tick, and one linear output after the last tick."""

    inputs: int
    """Numbers that come with each tick."""
    units: int

    def __call__(self, params: dict[str, Array], inputs: Array) -> Array:
        """Return the output, one row per sequence; sequences are (examples, ticks, numbers)."""

        def tick(state: Array, now: Array) -> tuple[Array, None]:
            return jnp.tanh(state @ params["w"] + now @ params["v"] + params["b"]), None

        start = jnp.zeros((inputs.shape[0], self.units), inputs.dtype)
        return jax.lax.scan(tick, start, jnp.swapaxes(inputs, 0, 1))[0] @ params["u"] + params["c"]

    def init(self, seed: int) -> dict[str, Array]:
        """Return sparse recurrent weights, their scale 1.1 / √15 (Martens and Sutskever 2011); float32."""
        generator = np.random.default_rng([seed, 0x2EC0])
        normal, units = generator.standard_normal, self.units
        chosen = np.argsort(generator.random((units, units)), axis=0) < INCOMING
        start = {
            "w": normal((units, units)) * chosen * 1.1 / np.sqrt(INCOMING),
            "v": 0.5 * normal((self.inputs, units)),
            "b": np.zeros(units),
            "u": normal((units, 1)) / np.sqrt(units),
            "c": np.zeros(1),
        }
        return {name: jnp.asarray(values, jnp.float32) for name, values in start.items()}


def uniform_init(units: Sequence[int], seed: int) -> Layers:
    """Return weights and biases within ±1/√(fan in): PyTorch's default, with which rectified nets are published."""
    generator = np.random.default_rng([seed, 0x1EA5])

    def drawn(reach: float, *shape: int) -> Array:
        return jnp.asarray(generator.uniform(-reach, reach, shape), jnp.float32)

    return [
        {"weights": drawn(rows**-0.5, rows, columns), "biases": drawn(rows**-0.5, columns)}
        for rows, columns in pairwise(units)
    ]


def sparse_init(units: Sequence[int], seed: int) -> Layers:
    """Return sparse initial parameters of a chain of dense layers."""
    return sparse_layers(pairwise(units), seed)


def sparse_layers(shapes: Iterable[tuple[int, int]], seed: int) -> Layers:
    """Give each unit `INCOMING` weights from N(0, 1); the others and the biases are zero (Martens 2010).

    The inputs that receive a weight are drawn with replacement, as in Martens' code, so a unit may
    have a few less; a weight drawn twice keeps the second value.
    """
    generator = np.random.default_rng([seed, 0x5EED])
    layers = []
    for fan_in, fan_out in shapes:
        weights = np.zeros((fan_in, fan_out), np.float32)
        for _ in range(INCOMING):
            chosen = generator.integers(fan_in, size=fan_out)
            weights[chosen, np.arange(fan_out)] = generator.standard_normal(fan_out)
        layers.append({"weights": jnp.asarray(weights), "biases": jnp.zeros(fan_out, np.float32)})
    return layers
