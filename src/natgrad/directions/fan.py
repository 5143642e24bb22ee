"""−(F + λD²)⁻¹g for many λ from one decomposition: a fan of rows, from the longest step to the shortest.

With A D⁻¹ = U diag(σ) Vᵀ the row of λ is d = −D⁻¹V w, w = c / (σ² + λ), c = VᵀD⁻¹g. Where the loss is ½‖r‖², g = Aᵀr
and c = σ ∘ Uᵀr: a product with Aᵀ would square the condition of A and lose half of the digits. The model promises

    gᵀd + ½dᵀFd = −½ Σ (c w + λ w²)

D holds the metric's own diagonal, D_jj = √F_jj (Marquardt 1963), so λ has no unit and the path does not depend on
those of the parameters. A second derivative bends the row (geodesic acceleration, Transtrum & Sethna 2012):

    d ← d + ½a,     a = −(F + λD²)⁻¹ Σ c Jᵀ M f″(d, d)
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.directions.base import Direction, Proposal
from natgrad.directions.krylov import Krylov
from natgrad.here import Here
from natgrad.operator import Operator, PenaltyTerm, Term
from natgrad.part import require
from natgrad.problem import working
from natgrad.solve.direct import Direct, decomposed
from natgrad.tree import Stack, Tree

AT_ONCE = 8
"""Rows bent at a time."""


class Spectrum(NamedTuple):
    """F in a space where λ is a division: its eigenvalues, a basis, and the gradient there."""

    values: Array
    basis: Array
    """Rows of length P, D⁻¹V: what the coordinates mean."""
    gradient: Array
    """c."""
    least: float
    """The smallest λ that means something, as a part of the largest eigenvalue."""
    outside: tuple[Array, Array] | None = None
    """D⁻² times what of g no row of the basis reaches, and its square in units of D; None where there is nothing."""


@dataclass(frozen=True)
class Fan(Direction):
    """−(F + λD²)⁻¹g for `count` values of λ between rounding and ten times F's largest eigenvalue. No λ is set by hand.

    Where `solver` allows it, A is formed and decomposed, in the smaller of parameter and residual space. A larger
    problem is projected on `size` Krylov vectors, F's products with g, and D is the identity. `ng.search.Pick` picks
    the row.
    """

    count: int = 33
    solver: Direct = Direct()
    largest: int = 4096
    """The longest smaller side that is decomposed: the time of it grows with the cube."""
    size: int = 50
    """Krylov vectors where A is too large."""
    floor: float | None = 1e-2
    """The least D_jj as a part of the largest, for parameters the metric hardly sees; None makes D the identity."""
    bend: float | None = 0.75
    """The largest ‖a‖ / ‖d‖ with which a row is bent; None leaves all straight."""

    def __post_init__(self) -> None:
        require(
            lambda: self.count >= 2 and self.size >= 1,
            "Fan needs at least two values of λ and one Krylov vector.",
        )

    def propose(self, here: Here, memory: Tree) -> Proposal:
        """Return the rows, the smallest λ first."""
        found = self.spectrum(here)
        values, c = found.values, found.gradient
        top = jnp.where(jnp.max(values) > 0, jnp.max(values), 1)
        grid = jnp.geomspace(found.least, 10.0, self.count, dtype=values.dtype)
        dampings = top * grid
        w = -c / (values + dampings[:, None])
        promises = jnp.sum(c * w - dampings[:, None] * w**2, axis=1) / 2
        rows = tree.matmul(w, found.basis)
        if found.outside is not None:
            # There the model has no curvature but λ's own.
            rest, square = found.outside
            promises = promises - square / dampings
            rows = rows - rest / dampings[:, None]
        if self.bend is not None and _bends(here.metric):
            rows = rows + self._bent(here, found, dampings, w, rows)
        stack = Stack(tree.unravel(rows, here.gradient))
        return Proposal.along(here, stack)._replace(dampings=dampings, promises=promises)

    def spectrum(self, here: Here) -> Spectrum:
        """Return F's eigenvalues and the gradient among its eigenvectors: exactly, or on a Krylov space."""
        metric, like = here.metric, here.gradient
        assert metric is not None
        penalty = None if here.penalty is None else tree.ravel(here.penalty)
        own = Operator(term for term in metric.terms if not isinstance(term, PenaltyTerm))
        side = min(own.height(like), tree.size(like)) if _formed(own) else self.largest + 1
        if side > self.largest or self.solver.bytes_for(own, like) > self.solver.memory:
            return self._projected(here)
        matrix, r = self.solver.matrix(own, like), None
        if here.metric_examples is None and here.loss is not None:
            r = own.residual()
        h = None if r is not None else tree.ravel(like)
        if penalty is not None:
            root = jnp.sqrt(penalty)
            matrix = jnp.concatenate([matrix, jnp.diag(root)])
            r = None if r is None else jnp.concatenate([r, root * tree.ravel(working(here.params))])
        inverse = self._units(matrix)
        singular, rows, heights = decomposed(matrix * inverse, r)
        c, outside = singular * heights, None
        if h is not None:
            c = tree.matmul(rows, inverse * h)
            if len(singular) < len(h):
                rest = inverse * h - tree.matmul(c, rows)
                outside = inverse * rest, jnp.sum(rest**2)
        eps = float(jnp.finfo(singular.dtype).eps)
        least = eps if h is not None else max(eps**2, 1e-16)
        return Spectrum(singular**2, rows * inverse, c, least, outside)

    def _units(self, matrix: Array) -> Array:
        """Return 1 / D."""
        if self.floor is None:
            return jnp.ones(matrix.shape[1], matrix.dtype)
        own = jnp.linalg.norm(matrix, axis=0)
        floored = jnp.maximum(own, self.floor * jnp.max(own))
        return 1 / jnp.where(floored == 0, 1, floored)

    def _projected(self, here: Here) -> Spectrum:
        """Return F on span{g, Fg, …}: what CG knows after as many iterations, for every λ."""
        vectors, products = Krylov(size=min(self.size, tree.size(here.gradient)), last_step=False).basis(
            here, None
        )
        finite = tree.is_finite(products)
        values, turn = jnp.linalg.eigh(jnp.where(finite, products, 0))
        basis = tree.matmul(turn.T, tree.ravel(vectors.leaves, lead=1))
        shift = here.shift - here.damping
        values = jnp.where(finite, jnp.maximum(values, 0) + shift, jnp.nan)
        c = tree.matmul(basis, tree.ravel(here.gradient))
        return Spectrum(values, basis, c, float(jnp.finfo(c.dtype).eps))

    def _bent(self, here: Here, found: Spectrum, dampings: Array, w: Array, rows: Array) -> Array:
        """Return ½a for each row; 0 where it is too long to be believed."""
        metric = here.metric
        assert metric is not None

        def force(row: Array) -> Array:
            return tree.ravel(metric.bend(tree.unravel(row, here.gradient)))

        forces = jax.lax.map(force, rows, batch_size=min(AT_ONCE, self.count))
        a = -tree.matmul(forces, found.basis.T) / (found.values + dampings[:, None])
        short = jnp.linalg.norm(a, axis=1) <= self.bend * jnp.linalg.norm(w, axis=1)
        return tree.matmul(jnp.where(short[:, None], a, 0), found.basis) / 2


def _formed(operator: Operator) -> bool:
    """Tell whether every term has a factor."""
    return all(type(term).matrix is not Term.matrix for term in operator.terms)


def _bends(operator: Operator | None) -> bool:
    """Tell whether every term knows how its outputs bend."""
    return operator is not None and all(type(term).bend is not Term.bend for term in operator.terms)
