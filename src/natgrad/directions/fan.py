"""−(F + λD²)⁻¹g for many λ from one decomposition: a fan of rows, from the longest step to the shortest.

With A D⁻¹ = U diag(σ) Vᵀ the row of λ is d = −D⁻¹V w, w = c / (σ² + λ), c = VᵀD⁻¹g. Where the loss is ½‖r‖², g = Aᵀr
and c = σ ∘ Uᵀr: a product with Aᵀ would square the condition of A and lose half of the digits. The model promises

    gᵀd + ½dᵀFd = −½ Σ (c w + λ w²)

D holds the metric's own diagonal, D_jj = √F_jj (Marquardt 1963), so λ has no unit and the steps do not depend on the
units of the parameters. A second derivative bends the row (geodesic acceleration, Transtrum & Sethna 2012):

    d ← d + ½a,     a = −(F + λD²)⁻¹ Σ c Jᵀ M f″(d, d)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad import tree
from natgrad.directions.base import Direction, Proposal, SolverInfo
from natgrad.directions.krylov import Krylov
from natgrad.metric.here import Here
from natgrad.metric.operator import Operator, PenaltyTerm
from natgrad.part import require
from natgrad.problem import working
from natgrad.solve.direct import Direct, decomposed, decomposed_dual
from natgrad.solve.result import Reason, Space
from natgrad.tree import Stack, Tree

BENT = 10
"""The number of rows that are bent."""


class Spectrum(NamedTuple):
    """F in its eigenbasis, where damping by λ is a division: its eigenvalues, and the gradient there."""

    values: Array
    gradient: Array
    """c."""
    lift: Callable[[Array], Array]
    """From coordinates to steps, y ↦ D⁻¹V y, one per row."""
    bend: Callable[[Array], Array]
    """From one step d to the coordinates of Σ c Jᵀ M f″(d, d)."""
    least: float
    """The smallest λ that rounding does not hide, as a fraction of the largest eigenvalue."""
    space: Any
    """Where F was decomposed, a `Space`."""
    outside: tuple[Array, Array] | None = None
    """D⁻² times the part of g outside the basis, and its square in units of D; None if there is none."""


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
    """The largest size of A's smaller side for a decomposition: its time grows with the cube."""
    size: int = 50
    """The number of Krylov vectors if A is too large."""
    floor: float | None = 1e-2
    """The least D_jj as a fraction of the largest, for parameters with little curvature; None makes D the identity."""
    bend: float | None = 0.75
    """The largest ‖a‖ / ‖d‖ with which a row is bent; None bends no row."""

    solves = True

    def __post_init__(self) -> None:
        require(
            lambda: self.count >= 2 and self.size >= 1,
            "Fan needs at least two values of λ and one Krylov vector.",
        )

    @property
    def width(self) -> int:  # type: ignore[override]
        """One row per λ."""
        return self.count

    def propose(self, here: Here, memory: Tree) -> Proposal:
        """Return the rows, the smallest λ first."""
        found = self.spectrum(here)
        values, c = found.values, found.gradient
        top = jnp.where(jnp.max(values) > 0, jnp.max(values), 1)
        grid = jnp.geomspace(found.least, 10.0, self.count, dtype=values.dtype)
        dampings = top * grid
        w = -c / (values + dampings[:, None])
        promises = jnp.sum(c * w - dampings[:, None] * w**2, axis=1) / 2
        rows = found.lift(w)
        if found.outside is not None:
            # Outside the basis the model's only curvature is λ.
            rest, square = found.outside
            promises = promises - square / dampings
            rows = rows - rest / dampings[:, None]
        if self.bend is not None and here.metric is not None and here.metric.formed:
            rows = rows + self._bent(found, dampings, w, rows)
        stack = Stack(tree.unravel(rows, here.gradient))
        reason = jnp.where(tree.is_finite(values, c), Reason.SOLVED, Reason.NONFINITE).astype(jnp.int32)
        products = jnp.array(len(values) if found.space == Space.KRYLOV else 1, jnp.int32)
        solved = SolverInfo(products, jnp.full_like(top, jnp.nan), reason, jnp.asarray(found.space))
        proposal = Proposal.along(here, stack, solver=solved)
        return proposal._replace(dampings=dampings, promises=promises)

    def spectrum(self, here: Here) -> Spectrum:
        """Return F's eigenvalues and the gradient in its eigenbasis: exactly, or on a Krylov space."""
        metric, like = here.metric, here.gradient
        assert metric is not None
        penalty = None if here.penalty is None else tree.ravel(here.penalty)
        own = Operator(term for term in metric.terms if not isinstance(term, PenaltyTerm))
        more = 0 if penalty is None else tree.size(like)  # A penalty has a row for each parameter.
        if not own.formed or min(own.height(like) + more, tree.size(like)) > self.largest:
            return self._projected(here)
        if self.solver.bytes_for(own, like, more) > self.solver.memory:
            return self._projected(here)
        matrix, r = self.solver.matrix(own, like), None
        if here.metric_examples is None and here.loss is not None:
            r = own.residual()
        rows = len(matrix)
        if penalty is not None:
            root = jnp.sqrt(penalty)
            matrix = jnp.concatenate([matrix, jnp.diag(root)])
            r = None if r is None else jnp.concatenate([r, root * tree.ravel(working(here.params))])
        inverse = self._units(matrix)
        matrix = matrix * inverse

        def second(d: Array) -> Array:
            return jnp.zeros(len(matrix), d.dtype).at[:rows].set(own.second(tree.unravel(d, like)))

        if r is None:
            return _normal(matrix, inverse, tree.ravel(like), second)
        return _least_squares(matrix, inverse, r, second)

    def _units(self, matrix: Array) -> Array:
        """Return 1 / D."""
        if self.floor is None:
            return jnp.ones(matrix.shape[1], matrix.dtype)
        own = jnp.linalg.norm(matrix, axis=0)
        floored = jnp.maximum(own, self.floor * jnp.max(own))
        return 1 / jnp.where(floored == 0, 1, floored)

    def _projected(self, here: Here) -> Spectrum:
        """Return F on span{g, Fg, …}. For every λ this is what CG knows after as many iterations."""
        vectors, products = Krylov(size=min(self.size, tree.size(here.gradient)), last_step=False).basis(
            here, None
        )
        finite = tree.is_finite(products)
        values, turn = jnp.linalg.eigh(jnp.where(finite, products, 0))
        basis = tree.matmul(turn.T, tree.ravel(vectors.leaves, lead=1))
        shift = here.shift - here.damping
        values = jnp.where(finite, jnp.maximum(values, 0) + shift, jnp.nan)
        c = tree.matmul(basis, tree.ravel(here.gradient))

        def bend(d: Array) -> Array:
            assert here.metric is not None
            return tree.matmul(basis, tree.ravel(here.metric.bend(tree.unravel(d, here.gradient))))

        least = float(jnp.finfo(c.dtype).eps)
        return Spectrum(values, c, lambda y: tree.matmul(y, basis), bend, least, np.int32(Space.KRYLOV))

    def _bent(self, found: Spectrum, dampings: Array, w: Array, rows: Array) -> Array:
        """Return ½a for `BENT` rows and 0 for the others. They begin with the longest row whose a can be trusted.

        An a can be trusted if it is short beside d. ‖a‖ / ‖d‖ mostly falls as λ grows. So bisection finds a row whose a
        can be trusted, next to a longer row whose a cannot. Rows that are much shorter hardly bend.
        """

        def acceleration(row: Array) -> Array:
            forces = jax.lax.map(found.bend, rows[row], batch_size=tree.at_once(len(row)))
            a = -forces / (found.values + dampings[row, None])
            short = jnp.linalg.norm(a, axis=1) <= self.bend * jnp.linalg.norm(w[row], axis=1)
            return jnp.where(short[:, None], a, jnp.inf)

        def halve(_: int, between: tuple[Array, Array]) -> tuple[Array, Array]:
            long, short = between
            middle = (long + short) // 2
            believed = jnp.all(jnp.isfinite(acceleration(middle[None])))
            return jnp.where(believed, long, middle), jnp.where(believed, middle, short)

        number = min(BENT, self.count)
        ends = jnp.array(-1), jnp.array(self.count - 1)
        first = jax.lax.fori_loop(0, self.count.bit_length(), halve, ends)[1] if number < self.count else 0
        window = jnp.clip(first, 0, self.count - number) + jnp.arange(number)
        a = acceleration(window)
        half = found.lift(jnp.where(jnp.isfinite(a), a, 0)) / 2
        return jnp.zeros_like(rows).at[window].set(half)


def _least_squares(matrix: Array, inverse: Array, r: Array, second: Callable[[Array], Array]) -> Spectrum:
    """Return the spectrum of AD⁻¹ where the loss is ½‖r‖²; `second` is f″ in the order of A's rows."""
    least, space = max(float(jnp.finfo(matrix.dtype).eps) ** 2, 1e-16), Space.smaller(*matrix.shape)
    if len(matrix) >= matrix.shape[1]:
        singular, rows, heights = decomposed(matrix, r)

        def bend(d: Array) -> Array:
            return tree.matmul(rows, tree.matmul(second(d), matrix))

        return Spectrum(
            singular**2, singular * heights, lambda y: tree.matmul(y, rows) * inverse, bend, least, space
        )
    singular, left, heights = decomposed_dual(matrix, r)

    def lift(y: Array) -> Array:
        zero = singular == 0
        e = tree.matmul(jnp.where(zero, 0, y / jnp.where(zero, 1, singular)), left.T)
        return tree.matmul(e, matrix) * inverse

    return Spectrum(
        singular**2, singular * heights, lift, lambda d: singular * tree.matmul(second(d), left), least, space
    )


def _normal(matrix: Array, inverse: Array, g: Array, second: Callable[[Array], Array]) -> Spectrum:
    """Return the spectrum of AD⁻¹ for any other gradient."""
    singular, rows, _ = decomposed(matrix)
    c, outside = tree.matmul(rows, inverse * g), None
    if len(singular) < len(g):
        rest = inverse * g - tree.matmul(c, rows)
        outside = inverse * rest, jnp.sum(rest**2)

    def bend(d: Array) -> Array:
        return tree.matmul(rows, tree.matmul(second(d), matrix))

    least, space = float(jnp.finfo(matrix.dtype).eps), Space.smaller(*matrix.shape)
    return Spectrum(singular**2, c, lambda y: tree.matmul(y, rows) * inverse, bend, least, space, outside)
