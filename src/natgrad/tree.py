"""The vector space of pytrees: what a solver needs to know about parameters.

A vector is any pytree of floating arrays of one structure. Nothing here ravels: leaves keep their
shapes, dtypes and shardings.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

Tree = Any
"""A pytree of arrays."""


def dtype(x: Tree) -> Any:
    """The widest floating dtype among the leaves: the dtype of this vector's scalars."""
    return jnp.result_type(*(leaf.dtype for leaf in jax.tree.leaves(x)))


def add(x: Tree, y: Tree) -> Tree:
    """Return x + y."""
    return jax.tree.map(jnp.add, x, y)


def sub(x: Tree, y: Tree) -> Tree:
    """Return x − y."""
    return jax.tree.map(jnp.subtract, x, y)


def scale(a: Any, x: Tree) -> Tree:
    """Return a·x for a scalar a, in the dtypes of x."""
    return jax.tree.map(lambda leaf: _as(a, leaf) * leaf, x)


def axpy(a: Any, x: Tree, y: Tree) -> Tree:
    """Return a·x + y for a scalar a, in the dtypes of x."""
    return jax.tree.map(lambda u, v: _as(a, u) * u + v, x, y)


def vdot(x: Tree, y: Tree) -> Array:
    """Return the inner product ⟨x, y⟩, a scalar of the vector's dtype."""
    wide = dtype(x)
    products = jax.tree.map(lambda u, v: jnp.sum((u * v).astype(wide)), x, y)
    return sum(jax.tree.leaves(products), start=jnp.zeros((), wide))


def norm(x: Tree) -> Array:
    """Return ‖x‖, without overflow or underflow of the squares."""
    largest = max_abs(x)
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, jnp.ones_like(largest))
    # A power of two, so that dividing by it rounds nothing and ‖2ᵏx‖ = 2ᵏ‖x‖ to the bit.
    unit = jnp.exp2(jnp.floor(jnp.log2(unit)))
    scaled = scale(1 / unit, x)
    return unit * jnp.sqrt(vdot(scaled, scaled))


def max_abs(x: Tree) -> Array:
    """Return the largest magnitude in x; nonfinite if any entry is."""
    wide = dtype(x)
    peaks = [jnp.max(jnp.abs(leaf), initial=0).astype(wide) for leaf in jax.tree.leaves(x)]
    return jnp.max(jnp.stack(peaks))


def zeros_like(x: Tree) -> Tree:
    """Return the zero vector of x's space."""
    return jax.tree.map(jnp.zeros_like, x)


def where(condition: Array, x: Tree, y: Tree) -> Tree:
    """Return x where the scalar condition holds, else y: a choice, so a NaN in the other is harmless."""
    return jax.tree.map(lambda u, v: jnp.where(condition, u, v), x, y)


def is_finite(*trees: Tree) -> Array:
    """Tell whether every floating number in the trees is finite. Test this first; compare after."""
    floating = [leaf for leaf in jax.tree.leaves(trees) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.array(True), *(jnp.all(jnp.isfinite(leaf)) for leaf in floating)]))


def _as(a: Any, leaf: Array) -> Array:
    return jnp.asarray(a).astype(leaf.dtype)
