"""A net and its derivatives in one forward pass: beside every value go its slopes and one second derivative.

With a = hw + b, the slopes ∂ᵢ and L = Σ cᵢ∂ᵢ², a layer of tanh is

    ∂ᵢh = h′ ∂ᵢa        Lh = h′ La + h″ Σ cᵢ(∂ᵢa)²        h′ = 1 − h²,  h″ = −2hh′

A Laplacian costs d + 2 passes, not the d + 1 pairs of nested derivatives (forward Laplacian, Li et al. 2024).
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

Weights = list[tuple[Array, Array]]
"""Weights and biases."""


class Jet(NamedTuple):
    """Values at points, with derivatives by the coordinates."""

    value: Array
    """(points, units)."""
    slopes: Array
    """∂ᵢ, (coordinates, points, units)."""
    second: Array
    """L, (points, units)."""


def coordinates(points: Array) -> Jet:
    """Return the coordinates themselves."""
    dims = points.shape[1]
    slopes = jnp.broadcast_to(jnp.eye(dims, dtype=points.dtype)[:, None], (dims, *points.shape))
    return Jet(points, slopes, jnp.zeros_like(points))


def through(layers: Weights, jet: Jet, c: Array) -> Jet:
    """Return the outputs of a net of tanh units, and their derivatives; c are those of L."""
    for number, (w, b) in enumerate(layers):
        a = Jet(jet.value @ w + b, jet.slopes @ w, jet.second @ w)
        if number == len(layers) - 1:
            return a
        h = jnp.tanh(a.value)
        first = 1 - h**2
        bent = jnp.einsum("i,ipk->pk", c, a.slopes**2)
        jet = Jet(h, first * a.slopes, first * (a.second - 2 * h * bent))
    return jet


def outputs(layers: Weights, inputs: Array) -> Array:
    """Return the outputs alone."""
    *hidden, (w, b) = layers
    for weights, biases in hidden:
        inputs = jnp.tanh(inputs @ weights + biases)
    return inputs @ w + b


def start(key: Array, units: Sequence[int]) -> Weights:
    """Return weights and biases uniform within ± 1/√fan-in, in double precision."""
    shapes = list(pairwise(units))
    layers = []
    for each, (fan, width) in zip(jax.random.split(key, len(shapes)), shapes, strict=True):
        drawn = jax.random.uniform(each, (fan + 1, width), jnp.float64, -1, 1) / math.sqrt(fan)
        layers.append((drawn[:-1], drawn[-1]))
    return layers
