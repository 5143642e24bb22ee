"""The vectors of MINRES and of MINRES-QLP, and the passage from one set to the other.

Either method keeps two vectors and a sum, and moves them by a linear map of (older, newer, v_k) whose
coefficients come from the reflections. So one fused pass over memory serves both, and the passage is a product
of 3×3 matrices.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.solve.reflections import Column, Right, Rotation
from natgrad.tree import Tree


class Vectors(NamedTuple):
    """QLP: (w_{k−1}, w_k, Σ_{j≤k−2} μ_j w_j). MINRES: (d_{k−1}, d_k, x_k)."""

    older: Tree
    newer: Tree
    sum: Tree


def minres_map(column: Column, cut: Array) -> Array:
    """d_k = (v_k − ε_k d_{k−2} − δ_k d_{k−1})/γ_k; x_k = x_{k−1} + τ_k d_k unless the component is cut."""
    gamma = jnp.where(column.gamma > 0, column.gamma, 1)
    d = jnp.stack([-column.epsilon / gamma, -column.delta / gamma, 1 / gamma])
    return _matrix([0, 1, 0], d, jnp.where(cut, 0, column.tau) * d)


def qlp_map(right: Right, outer: Rotation, inner: Rotation) -> Array:
    """P_{k−2,k} makes w_{k−2} and h of (w_{k−2}, v_k); P_{k−1,k} makes w_{k−1} and w_k of (w_{k−1}, h)."""
    (c2, s2), (c1, s1) = outer, inner
    return _matrix(
        [s1 * s2, c1, -s1 * c2],
        [-c1 * s2, s1, c1 * c2],
        [right.mu_2 * c2, 0, right.mu_2 * s2],
    )


def qlp_map_after_minres(moves: Array, before: Right) -> Array:
    """Compose QLP's map with the passage from d to w at the end of the step before.

    w_{k−2} = γ_{k−2}d_{k−2} + θ_{k−1}d_{k−1} and w_{k−1} = γ_{k−1}d_{k−1}; the sum gives back the two
    components that QLP has not fixed yet (Choi, Paige & Saunders 2011, section 5.4).
    """
    passage = _matrix([before.gamma_1_before, before.theta, 0], [0, before.gamma, 0], [0, 0, 1])
    returned = _matrix([0, 0, 0], [0, 0, 0], [-before.mu_1, -before.mu, 0])
    return jnp.matmul(moves + returned, passage, precision="highest")


def stay(dtype: Any) -> Array:
    """Return the map that moves nothing."""
    return jnp.diag(jnp.array([1, 1, 0], dtype))


def move(moves: Array, v: Tree, vectors: Vectors) -> Vectors:
    """Apply a map, whose last row is the change of the sum. Each vector is overwritten when it was read last."""

    def one(v: Array, older: Array, newer: Array, total: Array) -> tuple[Array, Array, Array]:
        (a, b, c), (d, e, f), (g, h, i) = moves.astype(v.dtype)
        total = total + g * older + h * newer + i * v
        part = d * older + f * v
        older = tree.after(a, total, part) * older + b * newer + c * v
        newer = tree.after(e, older) * newer + part
        return older, newer, total

    leaves, structure = jax.tree.flatten(v)
    moved = zip(*map(one, leaves, *map(jax.tree.leaves, vectors)), strict=True)
    return Vectors(*(jax.tree.unflatten(structure, part) for part in moved))


def assemble(vectors: Vectors, right: Right, in_qlp: Array, drop_last: Array) -> Tree:
    """Return x_k = Σ μ_j w_j, with or without its last component."""
    last = jnp.where(drop_last, 0, right.mu)
    # In MINRES's vectors x_k is the sum already and μ_k w_k = μ_k γ_k d_k.
    taken_back = jnp.where(drop_last, -right.mu * right.gamma, 0)
    x = tree.axpy(jnp.where(in_qlp, right.mu_1, 0), vectors.older, vectors.sum)
    return tree.axpy(jnp.where(in_qlp, last, taken_back), vectors.newer, x)


def _matrix(*rows: Sequence | Array) -> Array:
    entries = [entry for row in rows for entry in row]
    wide = jnp.result_type(*(entry for entry in entries if isinstance(entry, Array)))
    return jnp.stack([jnp.asarray(entry, wide) for entry in entries]).reshape(3, 3)
