"""Krylov Subspace Descent's rows (Vinyals & Povey 2012): g, Fg, …, F^{k−1}g and the last step, orthonormal."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.directions.base import Direction, Proposal
from natgrad.metric.here import Here
from natgrad.part import require
from natgrad.precondition import Identity, Inverse, Preconditioner
from natgrad.tree import Stack, Tree


@dataclass(frozen=True)
class Krylov(Direction):
    """A basis V of span{g, P⁻¹Fg, …} and the last step, scaled so that the metric on it is the identity.

    With H̄ = VFVᵀ (eigenvalues floored) = CCᵀ the rows are C⁻¹V: a BFGS search from 0 then starts, in effect, from
    the metric. There is no damping. A vector that is already in the span is dropped (its row is 0).
    """

    size: int = 20
    last_step: bool = True
    """Whether the last step is in the span."""
    preconditioner: Preconditioner = Identity()
    floor: float = 1e-4
    """The least eigenvalue of H̄, as a fraction of the largest."""

    def __post_init__(self) -> None:
        require(lambda: self.size >= 1, f"Krylov(size={self.size}): at least one vector is needed.")

    @property
    def needs_last_step(self) -> bool:  # type: ignore[override]
        """Whether the last step is in the span."""
        return self.last_step

    @property
    def width(self) -> int:  # type: ignore[override]
        """The size, and one for the last step."""
        return self.size + self.last_step

    def init(self, theta: Tree) -> Tree:
        """Return the preconditioner's memory."""
        return self.preconditioner.init(theta)

    def propose(self, here: Here, memory: Tree) -> Proposal:
        """Return C⁻¹V."""
        inverse, memory = self.preconditioner.inverse(here, memory)
        vectors, products = self.basis(here, inverse)
        return Proposal.along(here, _solved(self._root(products), vectors), memory)

    def basis(self, here: Here, inverse: Inverse) -> tuple[Stack, Array]:
        """Return V and H̄ = VFVᵀ, by size + 1 products and full orthogonalization, done twice."""
        metric = here.metric
        assert metric is not None
        apply = (lambda v: v) if inverse is None else inverse
        count = self.width

        def extend(i: Array, carry: tuple[Stack, Array, Tree]) -> tuple[Stack, Array, Tree]:
            vectors, products, candidate = carry
            vector = _orthonormal(candidate, vectors)
            vectors = Stack(jax.tree.map(lambda rows, v: rows.at[i].set(v), vectors.leaves, vector))
            product = metric(vector)
            products = products.at[i].set(tree.onto(vectors, product))
            following = apply(product)
            if self.last_step:
                assert here.last is not None
                following = tree.where(i + 1 == self.size, here.last.step, following)
            return vectors, products, following

        empty = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), here.gradient)
        wide = tree.dtype(here.gradient)
        start = (Stack(empty), jnp.zeros((count, count), wide), apply(here.gradient))
        vectors, products, _ = jax.lax.fori_loop(0, count, extend, start)
        # Row i has the products with the vectors up to i: the lower triangle is H̄'s.
        lower = jnp.tril(products)
        return vectors, lower + jnp.tril(products, -1).T

    def _root(self, products: Array) -> Array:
        """Return C with CCᵀ = H̄, its eigenvalues floored."""
        values, vectors = jnp.linalg.eigh(products)
        floored = jnp.maximum(values, self.floor * jnp.max(values))
        # A metric that is 0 on the whole span leaves the basis as it is.
        floored = jnp.where(jnp.max(values) > 0, floored, 1)
        floored = jnp.where(jnp.isfinite(values), floored, values)
        return jnp.linalg.cholesky(tree.matmul(vectors * floored, vectors.T))

    def forget(self, before: Tree, after: Tree) -> Tree:
        """Keep what the preconditioner measured."""
        return after


def _orthonormal(candidate: Tree, vectors: Stack) -> Tree:
    """Return the candidate orthogonal to the vectors, of length 1, or 0 if nothing is left of it."""
    before = tree.norm(candidate)
    for _ in range(2):
        overlap = tree.onto(vectors, candidate)
        candidate = tree.sub(candidate, tree.combine(overlap, vectors))
    after = tree.norm(candidate)
    nothing = after <= 100 * jnp.finfo(after.dtype).eps * before
    # A NaN is not "nothing": it must reach the accept test.
    return tree.where(
        nothing, tree.zeros_like(candidate), tree.scale(1 / jnp.where(nothing, 1, after), candidate)
    )


def _solved(root: Array, rows: Stack) -> Stack:
    """Return C⁻¹V by products: LAPACK's own solve of many columns stalls beside a busy process."""
    inverse = jax.scipy.linalg.solve_triangular(root, jnp.eye(root.shape[0], dtype=root.dtype), lower=True)

    def solve(leaf: Array) -> Array:
        return jnp.tensordot(inverse.astype(leaf.dtype), leaf, axes=1, precision="highest")

    return Stack(jax.tree.map(solve, rows.leaves))
