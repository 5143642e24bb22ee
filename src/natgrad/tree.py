"""The vector space of pytrees: what a solver needs to know about parameters.

A vector is any pytree of floating arrays of one structure. Only `ravel` makes one array of it: otherwise leaves keep
their shapes, dtypes and shardings. Every product of matrices asks for full precision: accelerators use less by default.
"""

from collections.abc import Callable
from functools import reduce
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

Tree = Any
"""A pytree of arrays."""


def dtype(x: Tree) -> Any:
    """The widest floating dtype among the leaves: the dtype of this vector's scalars."""
    # Not result_type, which refuses a mixture under jax_numpy_dtype_promotion="strict".
    return max((leaf.dtype for leaf in jax.tree.leaves(x)), key=lambda kind: jnp.finfo(kind).bits)


def at_least_single(kind: Any) -> Any:
    """Return the dtype itself, or float32 for half precision: what sums and solvers work in."""
    half = jnp.issubdtype(kind, jnp.floating) and jnp.finfo(kind).bits < 32
    return jnp.dtype(jnp.float32) if half else kind


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
    return _sum(jax.tree.leaves(products))


def length(x: Tree) -> Array:
    """Return ‖x‖ in one pass; not finite if any entry is not, or if its square is not."""
    return jnp.sqrt(vdot(x, x))


def norm(x: Tree) -> Array:
    """Return ‖x‖, without overflow or underflow of the squares: two passes."""
    wide = dtype(x)
    unit = power_of_two(_sum([jnp.sum(jnp.abs(leaf).astype(wide)) for leaf in jax.tree.leaves(x)]))
    scaled = scale(1 / unit, x)
    return unit * jnp.sqrt(vdot(scaled, scaled))


def power_of_two(magnitude: Array) -> Array:
    """Return the power of two nearest a positive number; 1 for 0 and for numbers that are not finite.

    Division by a power of two rounds nothing, so later results scale with the input to the bit. The exponent is kept
    where the reciprocal is a normal number.
    """
    precision = jnp.finfo(magnitude.dtype)
    # The exponent's bits alone give the power of two below. exp2 would round, and ldexp would compute a power.
    integer = jnp.dtype(f"uint{precision.bits}")
    mask = jnp.array(((1 << precision.nexp) - 1) << precision.nmant, integer)
    bits = jax.lax.bitcast_convert_type(magnitude, integer) & mask
    below = jax.lax.bitcast_convert_type(bits, magnitude.dtype)
    nearest = jnp.where(magnitude > 2**0.5 * below, 2 * below, below)
    limit = 2.0 ** (precision.maxexp - 2)
    usable = jnp.isfinite(magnitude) & (below > 0)
    return jnp.where(usable, jnp.clip(nearest, 1 / limit, limit), 1)


def max_abs(x: Tree) -> Array:
    """Return the largest magnitude in x; nonfinite if any entry is."""
    wide = dtype(x)
    peaks = [jnp.max(jnp.abs(leaf), initial=0).astype(wide) for leaf in jax.tree.leaves(x)]
    return reduce(jnp.maximum, peaks)


def total(x: Tree) -> Array:
    """Return the sum of all numbers in x."""
    return reduce(jnp.add, [jnp.sum(leaf) for leaf in jax.tree.leaves(x)])


def zeros_like(x: Tree) -> Tree:
    """Return the zero vector of x's space."""
    return jax.tree.map(jnp.zeros_like, x)


def matmul(x: Array, y: Array) -> Array:
    """Return x y in full precision; accelerators use less for products by default."""
    return jnp.matmul(x, y, precision="highest")


def size(x: Tree) -> int:
    """Return the number of numbers in x."""
    return sum(leaf.size for leaf in jax.tree.leaves(x))


def ravel(x: Tree, lead: int = 0) -> Array:
    """Return x as one array in the vector's dtype; `lead` axes in front of every leaf stay."""
    wide = dtype(x)
    leaves = [leaf.astype(wide).reshape(*leaf.shape[:lead], -1) for leaf in jax.tree.leaves(x)]
    return jnp.concatenate(leaves, axis=-1)


def unravel(flat: Array, like: Tree) -> Tree:
    """Return the vector in the space of `like`; further axes in front stay."""
    leaves, structure = jax.tree.flatten(like)
    ends = list(accumulate(leaf.size for leaf in leaves))
    parts = jnp.split(flat, ends[:-1], axis=-1)
    shaped = [
        part.reshape(*flat.shape[:-1], *leaf.shape).astype(leaf.dtype)
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, shaped)


def where(condition: Array, x: Tree, y: Tree) -> Tree:
    """Return x if the scalar condition holds, else y. A NaN in the one not chosen does no harm."""
    return jax.tree.map(lambda u, v: jnp.where(condition, u, v), x, y)


def is_finite(*trees: Tree) -> Array:
    """Tell whether every floating number in the trees is finite. Test this first; compare after."""
    floating = [leaf for leaf in jax.tree.leaves(trees) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return reduce(jnp.logical_and, [jnp.all(jnp.isfinite(leaf)) for leaf in floating], jnp.array(True))


def _sum(scalars: list[Array]) -> Array:
    """Return the sum of one scalar per leaf, as a product: XLA would fuse a plain sum into each leaf's kernel again."""
    stacked = jnp.stack(scalars)
    return jnp.dot(stacked, jnp.ones_like(stacked), precision="highest")


def _as(a: Any, leaf: Array) -> Array:
    return jnp.asarray(a).astype(leaf.dtype)


def cast_like(x: Tree, like: Tree) -> Tree:
    """Return x in the dtypes of `like`."""
    return jax.tree.map(lambda u, v: u.astype(v.dtype), x, like)


class Stack(NamedTuple):
    """Many rows in one tree: every leaf has a leading axis. A few rows are a plain tuple of trees."""

    leaves: Tree


Rows = tuple[Tree, ...] | Stack


def count(rows: Rows) -> int:
    """Return the number of rows."""
    return int(jax.tree.leaves(rows)[0].shape[0]) if isinstance(rows, Stack) else len(rows)


def first(rows: Rows) -> Tree:
    """Return the first row."""
    return jax.tree.map(lambda leaf: leaf[0], rows.leaves) if isinstance(rows, Stack) else rows[0]


def combine(z: Array, rows: Rows) -> Tree:
    """Return zᵀB."""
    if isinstance(rows, Stack):
        return jax.tree.map(
            lambda leaf: jnp.tensordot(z.astype(leaf.dtype), leaf, axes=1, precision="highest"), rows.leaves
        )
    return reduce(add, [scale(z[i], row) for i, row in enumerate(rows)])


def each(function: Callable[[Tree], Tree], rows: Rows) -> Rows:
    """Apply the function to every row."""
    if isinstance(rows, Stack):
        return Stack(jax.vmap(function)(rows.leaves))
    return tuple(function(row) for row in rows)


def along(rows: Rows, x: Tree) -> Array:
    """Return ⟨row_i, x⟩ for every row, as sums, because the axes that a matrix product contracts may be sharded."""
    if isinstance(rows, Stack):
        return jax.vmap(lambda row: vdot(row, x))(rows.leaves)
    return jnp.stack([vdot(row, x) for row in rows])


def gram(rows: Rows) -> Array:
    """Return B Bᵀ."""
    return inner(rows, rows)


def inner(x: Rows, y: Rows) -> Array:
    """Return ⟨x_i, y_j⟩ for all rows."""
    if not isinstance(x, Stack):
        return jnp.stack([along(y, row) for row in x])
    assert isinstance(y, Stack)

    def product(u: Array, v: Array) -> Array:
        axes = tuple(range(1, u.ndim))
        return jnp.tensordot(u, v, axes=(axes, axes), precision="highest").astype(dtype(x))

    return reduce(jnp.add, jax.tree.leaves(jax.tree.map(product, x.leaves, y.leaves)))


def onto(rows: Stack, x: Tree) -> Array:
    """Return ⟨row_i, x⟩ for every row of a stack, as products of matrices."""
    return inner(rows, Stack(jax.tree.map(lambda leaf: leaf[None], x)))[:, 0]


def after(scalar: Array, *earlier: Array) -> Array:
    """Return the scalar unchanged, but make it depend on these arrays, so that they are computed first.

    A compiled loop overwrites a vector in place only if all its readers are known to come first; otherwise it copies
    the vector. A factor that seems to depend on the readers' results proves that order.
    """
    for array in (array for array in earlier if array.size):
        scalar = scalar + jnp.minimum(jnp.abs(array.ravel()[0]), 0).astype(scalar.dtype)
    return scalar


def at_once(count: int, most: int | None = None) -> int | None:
    """Return how many of `count` vectors `jax.lax.map` treats together; None is one by one.

    A CPU's cache often holds the numbers of one vector but not of eight: there, one by one takes a fraction of the
    time.
    """
    most = (1 if jax.default_backend() == "cpu" else 8) if most is None else most
    return None if min(most, count) == 1 else min(most, count)
