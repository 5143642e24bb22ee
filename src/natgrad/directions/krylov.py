"""Krylov Subspace Descent's rows (Vinyals & Povey 2012): g, Fg, …, F^{k−1}g and the last step, orthonormal."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.directions.base import Direction, Here, Rows
from natgrad.directions.conjugate import LastStep
from natgrad.precondition import Identity, Preconditioner
from natgrad.tree import Tree


@dataclass(frozen=True)
class Krylov(Direction):
    """A basis V of span{g, P⁻¹Fg, …} and the last step, scaled so that the metric on it is the identity.

    With H̄ = VFVᵀ (eigenvalues floored) = CCᵀ the rows are C⁻¹V: a search from 0 by BFGS then starts, in effect,
    from the metric. No damping. A vector that is already in the span is dropped (its row is 0).
    """

    size: int = 20
    last_step: bool = True
    """Whether the last step is in the span."""
    precondition: Preconditioner = Identity()
    floor: float = 1e-4
    """The least eigenvalue of H̄, as a part of the largest."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"Krylov(size={self.size}): at least one vector is needed.")

    def init(self, theta: Tree) -> LastStep:
        """Return no step."""
        return LastStep(self.precondition.init(theta), tree.zeros_like(theta))

    def rows(self, here: Here, memory: LastStep) -> Rows:
        """Return C⁻¹V."""
        inverse, kept = self.precondition.inverse(here, memory.inner)
        vectors, products = self.basis(here, memory.step, inverse)
        return Rows(_triangular_solve(self._root(products), vectors), LastStep(kept, memory.step))

    def basis(self, here: Here, last: Tree, inverse: object) -> tuple[Tree, Array]:
        """Return V and H̄ = VFVᵀ: size + 1 products, full orthogonalization done twice."""
        metric = here.metric
        assert metric is not None
        apply = inverse if callable(inverse) else (lambda v: v)
        count = self.size + self.last_step

        def extend(i: Array, carry: tuple[Tree, Array, Tree]) -> tuple[Tree, Array, Tree]:
            vectors, products, candidate = carry
            vector = _orthonormal(candidate, vectors)
            vectors = jax.tree.map(lambda rows, v: rows.at[i].set(v), vectors, vector)
            product = metric(vector)
            products = products.at[i].set(tree.inner(vectors, tree.stack(product))[:, 0])
            following = apply(product)
            if self.last_step:
                following = tree.where(i + 1 == self.size, last, following)
            return vectors, products, following

        empty = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), here.gradient)
        wide = tree.dtype(here.gradient)
        start = (empty, jnp.zeros((count, count), wide), apply(here.gradient))
        vectors, products, _ = jax.lax.fori_loop(0, count, extend, start)
        # Row i knows the vectors up to i: the lower triangle is H̄'s.
        lower = jnp.tril(products)
        return vectors, lower + jnp.tril(products, -1).T

    def _root(self, products: Array) -> Array:
        """Return C with CCᵀ = H̄, its eigenvalues floored."""
        values, vectors = jnp.linalg.eigh(products)
        floored = jnp.maximum(values, self.floor * jnp.max(values))
        # A metric that is 0 on the whole span leaves the basis as it is.
        floored = jnp.where(jnp.max(values) > 0, floored, 1)
        floored = jnp.where(jnp.isfinite(values), floored, values)
        return jnp.linalg.cholesky(jnp.matmul(vectors * floored, vectors.T, precision="highest"))

    def remember(self, memory: LastStep, step: Tree) -> LastStep:
        """Keep the step."""
        return LastStep(memory.inner, step)

    def forget(self, before: LastStep, after: LastStep) -> LastStep:
        """Drop the step."""
        return LastStep(after.inner, tree.zeros_like(before.step))


def _orthonormal(candidate: Tree, vectors: Tree) -> Tree:
    """Return the candidate orthogonal to the vectors, of length 1, or 0 if nothing is left of it."""
    before = tree.norm(candidate)
    for _ in range(2):
        overlap = tree.inner(vectors, tree.stack(candidate))[:, 0]
        candidate = tree.sub(candidate, tree.combine(overlap, vectors))
    after = tree.norm(candidate)
    nothing = after <= 100 * jnp.finfo(after.dtype).eps * before
    # A NaN is not "nothing": it must reach the accept test.
    return tree.where(
        nothing, tree.zeros_like(candidate), tree.scale(1 / jnp.where(nothing, 1, after), candidate)
    )


def _triangular_solve(root: Array, rows: Tree) -> Tree:
    def solve(leaf: Array) -> Array:
        flat = leaf.reshape(leaf.shape[0], -1)
        answer = jax.scipy.linalg.solve_triangular(root.astype(leaf.dtype), flat, lower=True)
        return answer.reshape(leaf.shape)

    return jax.tree.map(solve, rows)
