"""The networks of the arena: plain functions of (parameters, inputs), and their initial weights."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from natgrad_paper.training.models import Layers

CELL = 64
"""Units of the LSTM."""
WIDTH, HEADS, BLOCKS, CONTEXT = 64, 4, 2, 64
"""The sizes of the transformer."""


def dense(key: Array, units: Sequence[int], gain: float = 1.0, dtype: Any = jnp.float32) -> Layers:
    """Return layers with normal weights of variance gain² / fan-in, and biases 0."""
    keys = jax.random.split(key, len(units) - 1)
    return [
        {
            "w": jax.random.normal(each, shape, dtype) * (gain / math.sqrt(shape[0])),
            "b": jnp.zeros(shape[1], dtype),
        }
        for each, shape in zip(keys, pairwise(units), strict=True)
    ]


def mlp(activation: Callable[[Array], Array], params: Layers, inputs: Array) -> Array:
    """Return the outputs of a chain of dense layers, the last one linear."""
    *hidden, last = params
    for layer in hidden:
        inputs = activation(inputs @ layer["w"] + layer["b"])
    return inputs @ last["w"] + last["b"]


def convolutional(params: Layers, images: Array) -> Array:
    """Return logits: two convolutions with max pooling, then dense layers; rectified linear units."""
    values = images[..., None]
    for layer in params[:2]:
        axes = ("NHWC", "HWIO", "NHWC")
        maps = jax.lax.conv_general_dilated(values, layer["w"], (1, 1), "SAME", dimension_numbers=axes)
        window = (1, 2, 2, 1)
        pooled = jax.lax.reduce_window(maps + layer["b"], -jnp.inf, jax.lax.max, window, window, "VALID")
        values = jax.nn.relu(pooled)
    return mlp(jax.nn.relu, params[2:], values.reshape(len(values), -1))


def convolutional_init(key: Array, side: int, dtype: Any) -> Layers:
    """Return the weights of 16 and 32 filters of 5 × 5, 128 units and 10 outputs."""
    first, second, rest = jax.random.split(key, 3)
    filters = [
        {
            "w": jax.random.normal(each, shape, dtype) * math.sqrt(2 / math.prod(shape[:3])),
            "b": jnp.zeros(shape[3], dtype),
        }
        for each, shape in ((first, (5, 5, 1, 16)), (second, (5, 5, 16, 32)))
    ]
    return [*filters, *dense(rest, (32 * (side // 4) ** 2, 128, 10), math.sqrt(2), dtype)]


def lstm(params: dict[str, Any], sequences: Array) -> Array:
    """Return one number after the last tick; sequences are (cases, ticks, numbers)."""

    def tick(carried: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], None]:
        hidden, cell = carried
        gates = now @ params["wx"] + hidden @ params["wh"] + params["b"]
        enter, forget, new, out = jnp.split(gates, 4, axis=1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
        return (jax.nn.sigmoid(out) * jnp.tanh(cell), cell), None

    zeros = jnp.zeros((len(sequences), CELL), sequences.dtype)
    (hidden, _), _ = jax.lax.scan(tick, (zeros, zeros), sequences.swapaxes(0, 1))
    return hidden @ params["out"]["w"] + params["out"]["b"]


def lstm_init(key: Array, numbers: int, dtype: Any) -> dict[str, Any]:
    """Return the weights; forget gates start open, with a bias of 1."""
    inner, recurrent, out = jax.random.split(key, 3)
    return {
        "wx": jax.random.normal(inner, (numbers, 4 * CELL), dtype) / math.sqrt(numbers),
        "wh": jax.random.normal(recurrent, (CELL, 4 * CELL), dtype) / math.sqrt(CELL),
        "b": jnp.zeros(4 * CELL, dtype).at[CELL : 2 * CELL].set(1),
        "out": dense(out, (CELL, 1), dtype=dtype)[0],
    }


def transformer(params: dict[str, Any], tokens: Array) -> Array:
    """Return the logits of the next character at every position; the embedding is also the output layer."""
    length, embedding = tokens.shape[1], params["embed"]
    values = embedding[tokens] * math.sqrt(WIDTH) + params["places"][:length]
    past = jnp.tril(jnp.ones((length, length), bool))
    for block in params["blocks"]:
        values = values + _attended(block, _normalized(block["before"], values), past)
        seen = _normalized(block["between"], values)
        raised = jax.nn.gelu(seen @ block["up"]["w"] + block["up"]["b"])
        values = values + raised @ block["down"]["w"] + block["down"]["b"]
    return _normalized(params["last"], values) @ embedding.T


def _normalized(layer: dict[str, Array], values: Array) -> Array:
    centered = values - values.mean(axis=-1, keepdims=True)
    spread = jnp.mean(centered**2, axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt(spread + 1e-5) * layer["scale"] + layer["shift"]


def _attended(block: dict[str, Any], values: Array, past: Array) -> Array:
    queries, keys, read = jnp.einsum("btd,dchk->cbhtk", values, block["qkv"])
    scores = jnp.einsum("bhtk,bhsk->bhts", queries, keys) / math.sqrt(WIDTH // HEADS)
    shares = jax.nn.softmax(jnp.where(past, scores, -1e9))
    return jnp.einsum("bhts,bhsk,hkd->btd", shares, read, block["out"])


def transformer_init(key: Array, characters: int, dtype: Any) -> dict[str, Any]:
    """Return the weights; the output layers of a block start at half their usual size."""
    keys = iter(jax.random.split(key, 2 + 4 * BLOCKS))

    def normal(scale: float, *shape: int) -> Array:
        return jax.random.normal(next(keys), shape, dtype) * scale

    def plain() -> dict[str, Array]:
        return {"scale": jnp.ones(WIDTH, dtype), "shift": jnp.zeros(WIDTH, dtype)}

    unit, inner = 1 / math.sqrt(WIDTH), 4 * WIDTH
    blocks = [
        {
            "before": plain(),
            "between": plain(),
            "qkv": normal(unit, WIDTH, 3, HEADS, WIDTH // HEADS),
            "out": normal(unit / 2, HEADS, WIDTH // HEADS, WIDTH),
            "up": {"w": normal(unit, WIDTH, inner), "b": jnp.zeros(inner, dtype)},
            "down": {"w": normal(1 / math.sqrt(inner) / 2, inner, WIDTH), "b": jnp.zeros(WIDTH, dtype)},
        }
        for _ in range(BLOCKS)
    ]
    embedding, places = normal(unit, characters, WIDTH), normal(0.1, CONTEXT, WIDTH)
    return {"embed": embedding, "places": places, "blocks": blocks, "last": plain()}
