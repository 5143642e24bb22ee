"""Orthonormal bases and eigenvectors from products alone.

LAPACK calls (`qr`, `eigh`) stall while another process keeps a core busy, because their threads wait for one another.
They also handle the members of a stack one by one. The functions here are loops of products, which `vmap` turns into
larger products.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad import tree

SWEEPS = 6
"""Sweeps of Jacobi's method on 3 × 3 matrices. It converges quadratically: four reach the rounding of float64."""
SMALL = 3
"""The most rows whose eigenvectors come from Jacobi's method, written out rotation by rotation."""


def orthonormal(rows: Array) -> Array:
    """Return orthonormal rows; the first k span what the first k rows span. This is Gram–Schmidt, twice per row.

    It takes matrices on a leading axis. The second time removes what rounding left of the earlier rows (Giraud et al.
    2005, "twice is enough"). The rows must be independent up to rounding; a row of zeros stays a row of zeros.
    """
    count = rows.shape[1]
    number = np.arange(count, dtype=np.int32)

    def one(time: Array, rows: Array) -> Array:
        j = time // 2
        row = jax.lax.dynamic_slice_in_dim(rows, j, 1, axis=1)
        before = jnp.where(number < j, tree.matmul(row, rows.mT), 0)
        return jax.lax.dynamic_update_slice_in_dim(rows, _unit(row - tree.matmul(before, rows)), j, axis=1)

    return jax.lax.fori_loop(0, 2 * count, one, rows)


def iterated(matrix: Array, basis: Array, turns: Array | int) -> tuple[Array, Array]:
    """Return B after `turns` rounds of orthogonal iteration, B ← orthonormal(A B), and the diagonal of Bᵀ A B.

    It takes matrices on a leading axis. A is symmetric and positive semidefinite. B has orthonormal columns and
    converges to A's leading eigenvectors, the first one first. Columns are sorted beforehand, which saves rounds when
    eigenvalues have changed places.

    The shift δ in (A + δI)B bounds what rounding can do: Bᵀ(A + δI)B ⪰ δI, so the columns are independent whatever A's
    rank. Eigenvectors stay the same; those of eigenvalues below δ = 32 eps tr A keep their old place.
    """
    trace = traces(matrix)
    # Scaled, so that no square overflows; a matrix of zeros leaves B as it is.
    seen = (trace > 0) & jnp.isfinite(trace)
    shift = jnp.where(seen, 32 * jnp.finfo(matrix.dtype).eps, 1).astype(matrix.dtype)
    eye = np.eye(matrix.shape[1], dtype=bool)
    matrix = matrix / jnp.where(trace > 0, trace, 1)[:, None, None] + jnp.where(eye, shift[:, None, None], 0)

    rows = basis.mT
    image = tree.matmul(rows, matrix)
    order = _ordered(jnp.where(seen[:, None], jnp.sum(rows * image, axis=2), 0))
    rows, image = tree.matmul(order, rows), tree.matmul(order, image)

    def turn(_: Any, both: tuple[Array, Array]) -> tuple[Array, Array]:
        rows = orthonormal(both[1])
        return rows, tree.matmul(rows, matrix)

    rows, image = jax.lax.fori_loop(0, turns, turn, (rows, image))
    return rows.mT, trace[:, None] * (jnp.sum(rows * image, axis=2) - shift[:, None])


def traces(matrices: Array) -> Array:
    """Return the traces of matrices on a leading axis: `jnp.trace` would make a copy of each."""
    return jnp.sum(diagonals(matrices), axis=1)


def diagonals(matrices: Array) -> Array:
    """Return the diagonals of matrices on a leading axis."""
    return matrices.reshape(len(matrices), -1)[:, :: matrices.shape[1] + 1]


def _ordered(values: Array) -> Array:
    """Return the permutation matrices that put the largest values first: a sort takes long to compile."""
    number = np.arange(values.shape[1])
    one, other = values[:, :, None], values[:, None, :]
    place = jnp.sum((other > one) | ((other == one) & (number < number[:, None])), axis=2)
    return (place[:, None, :] == number[:, None]).astype(values.dtype)


def spread(length: int, count: int, dtype: Any) -> np.ndarray:
    """Return orthonormal columns that favor no direction: cosines whose rows have random signs."""
    place, frequency = np.arange(length)[:, None] + 0.5, np.arange(count)
    cosines = np.cos(np.pi * place * frequency / length) * np.sqrt(np.where(frequency, 2, 1) / length)
    signs = np.random.default_rng(length).choice([-1.0, 1.0], (length, 1))
    return (signs * cosines).astype(dtype)


def eigenvectors(matrix: Array) -> tuple[Array, Array]:
    """Return eigenvalues, in any order, and eigenvectors of a symmetric matrix; no LAPACK up to 3 × 3.

    Jacobi's rotations: in the plane of rows p and q the tangent is t = sign(d) 2a / (|d| + √(d² + 4a²)), with
    a = A_pq and d = A_qq − A_pp. For two rows the first rotation is exact.
    """
    size = len(matrix)
    if size > SMALL:
        return jnp.linalg.eigh(matrix)
    vectors = jnp.eye(size, dtype=matrix.dtype)
    pairs = [(p, q) for p in range(size) for q in range(p + 1, size)]
    for p, q in pairs * (SWEEPS if size > 2 else 1):
        turn = _rotation(matrix, p, q)
        matrix, vectors = tree.matmul(turn.T, tree.matmul(matrix, turn)), tree.matmul(vectors, turn)
    return jnp.diagonal(matrix), vectors


def _rotation(matrix: Array, p: int, q: int) -> Array:
    """Return the rotation of rows p and q that makes their entry of the matrix 0."""
    twice, apart = 2 * matrix[p, q], matrix[q, q] - matrix[p, p]
    # A matrix with a unit diagonal does not need hypot's protection against overflow.
    below = jnp.abs(apart) + jnp.sqrt(apart**2 + twice**2)
    tangent = jnp.where(below == 0, 0, twice / jnp.where(below == 0, 1, below))
    tangent = jnp.where(apart < 0, -tangent, tangent)
    cosine = jax.lax.rsqrt(1 + tangent**2)
    sine = cosine * tangent
    turn = jnp.eye(len(matrix), dtype=matrix.dtype)
    return turn.at[[p, q, p, q], [p, q, q, p]].set(jnp.stack([cosine, cosine, sine, -sine]))


def _unit(row: Array) -> Array:
    """Return the rows, scaled to length 1."""
    square = jnp.sum(row * row, axis=-1, keepdims=True)
    return row * jax.lax.rsqrt(jnp.maximum(square, jnp.finfo(row.dtype).tiny))
