"""Inputs with units of their own: which inputs of a leaf are columns of the data, and how large each of them is.

Every input has a peak p: the largest amount that one group of examples has recently added to its entry of the factor's
diagonal. The peak says how large the input is where it is not 0, however few examples those are.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad.arranged import Arranged, Length
from natgrad.metric.here import Here

UNSEEN = 1e-12
"""An input whose peak is below this fraction of the highest peak counts as never seen."""
FADING = 0.99
"""The factor by which a peak decays per refresh."""
READS = 2.0
"""A leaf reads the data's columns if the logarithms of its inputs' peaks follow those of the columns' squares, up to
this standard deviation."""


def peaks(old: Array, found: Array) -> Array:
    """Return the peaks after one more refresh."""
    return jnp.maximum(FADING * old, found)


def columns(here: Here, arranged: Arranged) -> list[Array | None]:
    """Return the largest square in each of the data's columns, (count, n), for every stack of sides.

    They are 0 for a side that is not as long as any of the data's arrays, and None if no side of the stack is.
    """
    examples = here.examples if here.metric_examples is None else here.metric_examples
    counted = jax.tree.leaves(examples.coefficients)
    squares: dict[int, Array] = {}
    for leaf in jax.tree.leaves(examples.inputs):
        if leaf.ndim < 2 or not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        if len(counted) == 1 and counted[0].shape == leaf.shape[: counted[0].ndim]:
            # What has a weight of 0 may hold anything.
            kept = counted[0] != 0
            leaf = jnp.where(kept.reshape(kept.shape + (1,) * (leaf.ndim - kept.ndim)), leaf, 0)
        for rows in (leaf.reshape(-1, leaf.shape[-1]), leaf.reshape(len(leaf), -1)):
            squares.setdefault(rows.shape[1], jnp.max(rows * rows, axis=0))

    def stacked(length: Length, inputs: np.ndarray) -> Array | None:
        sizes = inputs.sum(axis=1).tolist()
        if not squares.keys() & set(sizes):
            return None
        none = jnp.zeros(0, length.dtype)
        found = [squares.get(size, none).astype(length.dtype) for size in sizes]
        return jnp.stack([jnp.pad(own, (0, length.size - len(own))) for own in found])

    return [stacked(*each) for each in zip(arranged.lengths, arranged.inputs, strict=True)]


def scale(peak: Array, inputs: Any, columns: Array, uneven: Any) -> Array:
    """Return √S: S = p / m if a leaf's inputs are columns of the data and differ in size; otherwise S = 1.

    p are the inputs' peaks, and m is the geometric mean of p. An input that was never seen has S = 1. Inputs differ in
    size if the standard deviation of log p is above log(uneven). They are columns of the data if the standard deviation
    of log p − log x² is below `READS`, where x² is the largest square in a column. Hidden units that are rarely active
    also have small peaks, but no units of measurement: with little damping their weights would take giant steps.

    Marquardt (1963) damps every parameter in units of its own curvature, S = diag L. Dividing an input column by ten
    and multiplying its weights by ten then changes nothing. The diagonal depends on how large an input is and on how
    often it is not 0; the peak depends on its size alone. So an input that is mostly 0 does not get giant steps.
    """
    seen = inputs & (peak > UNSEEN * jnp.max(peak, axis=1, keepdims=True, where=inputs, initial=0))
    logs = jnp.log(jnp.where(seen, peak, 1))
    logs, spread = _deviations(logs, seen)
    apart = logs - jnp.log(jnp.where(columns > 0, columns, 1))
    reads = jnp.any(seen & (columns > 0), axis=1, keepdims=True)
    reads &= _deviations(apart, seen & (columns > 0))[1] < READS
    uneven = jnp.log(jnp.asarray(uneven, peak.dtype))
    return jnp.where(reads & (spread > uneven), jnp.exp(logs / 2), 1)


def _deviations(values: Array, chosen: Any) -> tuple[Array, Array]:
    """Return the deviations of each row's chosen values from their mean, 0 for the others, and the standard one."""
    count = jnp.maximum(jnp.sum(chosen, axis=1, keepdims=True, dtype=values.dtype), 1)
    mean = jnp.sum(values, axis=1, keepdims=True, where=chosen) / count
    apart = jnp.where(chosen, values - mean, 0)
    return apart, jnp.sqrt(jnp.sum(apart**2, axis=1, keepdims=True) / count)
