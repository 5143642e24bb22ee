"""The direct solve: form A with F = AᵀA, decompose it once, and every λ is a division.

    A = U diag(σ) Vᵀ        (F + λI)⁻¹ b = V diag(1 / (σ² + λ)) Vᵀ b,  and (b − VVᵀb) / λ outside A's rows

F itself has the squares of σ. In floating point it loses every σ below √eps times the largest, while A keeps all
above eps. So A is decomposed, never F or AAᵀ. A QR factorization first makes it as small as the smaller of its sides,
parameters (the primal) or examples × outputs (the dual).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.part import Part, require
from natgrad.solve.problem import meets, verdict
from natgrad.solve.program import program
from natgrad.solve.result import Reason, Solution, Space
from natgrad.tree import Tree

COPIES = 4
"""How many arrays of A's size, and of its smaller side squared, a decomposition holds."""


class Formed(Protocol):
    """F = AᵀA, a metric that can form A."""

    def __call__(self, v: Tree) -> Tree:
        """Return Fv."""
        ...

    def height(self, like: Tree) -> int:
        """Return the number of A's rows."""
        ...

    def matrix(self, like: Tree) -> Array:
        """Return A."""
        ...


class Decomposition(NamedTuple):
    """A = U diag(σ) Vᵀ, as far as it is needed. All of it is NaN if A is not finite."""

    singular: Array
    """σ, the largest first."""
    rows: Array
    """Vᵀ: orthonormal rows, one for each σ."""
    heights: Array
    """Uᵀr, for the r that was given."""


def decomposed(matrix: Array, r: Array | None = None) -> Decomposition:
    """Return the singular values and right vectors of A, and Uᵀr, by a QR factorization and the SVD of its small R."""
    height, width = matrix.shape
    r = jnp.zeros(height, matrix.dtype) if r is None else r
    finite = tree.is_finite(matrix, r)
    # LAPACK may never return from a NaN.
    matrix, r = jnp.where(finite, matrix, 0), jnp.where(finite, r, 0)
    if height >= width:
        # With r as one more column, R holds Qᵀr, and Q is never formed.
        small = jnp.linalg.qr(jnp.concatenate([matrix, r[:, None]], axis=1), mode="r")
        left, singular, rows = jnp.linalg.svd(small[:width, :width])
        heights = tree.matmul(left.T, small[:width, width])
    else:
        q, small = jnp.linalg.qr(matrix.T)
        left, singular, right = jnp.linalg.svd(small)
        rows, heights = tree.matmul(left.T, q.T), tree.matmul(right, r)
    poison = jnp.where(finite, 0, jnp.nan).astype(matrix.dtype)
    return Decomposition(singular + poison, rows + poison, heights + poison)


class Dual(NamedTuple):
    """A = U diag(σ) Vᵀ with fewer rows than columns, without V, which is Aᵀ U diag(1/σ). NaN if A is not finite."""

    singular: Array
    left: Array
    """U."""
    heights: Array
    """Uᵀr."""


def decomposed_dual(matrix: Array, r: Array) -> Dual:
    """Return the singular values and left vectors of a wide A, and Uᵀr. Neither Q nor V is formed: half the cost."""
    finite = tree.is_finite(matrix, r)
    small = jnp.linalg.qr(jnp.where(finite, matrix, 0).T, mode="r")
    left, singular, _ = jnp.linalg.svd(small.T)
    poison = jnp.where(finite, 0, jnp.nan).astype(matrix.dtype)
    return Dual(singular + poison, left, tree.matmul(jnp.where(finite, r, 0), left) + poison)


@dataclass(frozen=True)
class Direct(Part):
    """Solve (F + λI) x = b through the singular values of A, F = AᵀA: for few parameters, or few examples × outputs.

    A is formed example by example: by reverse mode, or forward mode if there are fewer parameters than outputs. So the
    model must not couple examples. Where λ = 0 and F is singular, x is the shortest least-squares solution.

    One step of refinement follows. The `reason` comes from a residual recomputed with F's own product: a relative
    residual of 1e-8 counts as solved, and in float32 one of 1e-4.

    The decomposition is LAPACK's. On a CPU that other processes use too, set OPENBLAS_NUM_THREADS=1 before Python
    starts: LAPACK's threads wait for one another.
    """

    memory: int = 2**31
    """The most bytes that A and its decomposition may take. More is refused before anything is allocated."""

    def __post_init__(self) -> None:
        require(lambda: self.memory > 0, f"Direct(memory={self.memory}): give a positive number of bytes.")

    def bytes_for(self, operator: Formed, like: Tree, more: int = 0) -> int:
        """Return how many bytes A and its decomposition take, if A has `more` rows than the operator's own."""
        height, width = operator.height(like) + more, tree.size(like)
        return COPIES * (height * width + min(height, width) ** 2) * tree.dtype(like).itemsize

    def matrix(self, operator: Formed, like: Tree) -> Array:
        """Return A, or refuse one that is too large."""
        need = self.bytes_for(operator, like)
        if need > self.memory:
            raise ValueError(
                f"A direct solve of {operator.height(like)} examples × outputs and {tree.size(like)} parameters takes "
                f"{need / 2**20:,.1f} MiB, and Direct(memory=) allows {self.memory / 2**20:,.1f}: use solver=ng.CG(), "
                "which forms no matrix."
            )
        return operator.matrix(like)

    def __call__(
        self, operator: Formed, b: Tree, shift: Any = None, *, x0: Any = None, preconditioner: Any = None
    ) -> Solution:
        """Solve (F + shift·I) x = b."""
        if x0 is not None or preconditioner is not None:
            raise ValueError("Direct solves at once: it takes no warm start, x0= or preconditioner=.")
        b, shift = jax.tree.map(jnp.asarray, (b, 0.0 if shift is None else shift))
        return program(_solve, self, operator, None)(b, shift)

    def run(self, operator: Formed, b: Tree, shift: Array) -> Solution:
        """Solve (F + shift·I) x = b for a given operator."""
        wide = tree.dtype(b)
        shift = shift.astype(wide)
        b_norm = tree.norm(b)
        unit = tree.power_of_two(b_norm)
        scaled = tree.scale(1 / unit, b)
        singular, rows, _ = decomposed(self.matrix(operator, b))
        values = singular**2
        norm = values[0] + shift

        # Below this, rounding cannot tell F + λI from 0: b has no component there, or none that x can reach.
        least = max(rows.shape) * jnp.finfo(wide).eps * values[0]
        inverse = _inverse(values + shift, jnp.where(shift > 0, 0, least))
        outside = _inverse(shift, jnp.zeros_like(shift)) if len(values) < rows.shape[1] else None

        def divided(flat: Array) -> Array:
            inside = tree.matmul(rows, flat)
            x = tree.matmul(inverse * inside, rows)
            return x if outside is None else x + outside * (flat - tree.matmul(inside, rows))

        def left(x: Tree) -> Tree:
            return tree.sub(scaled, tree.axpy(shift, x, operator(x)))

        x = tree.unravel(divided(tree.ravel(scaled)), b)
        x = tree.add(x, tree.unravel(divided(tree.ravel(left(x))), b))
        r = left(x)
        r_norm, normal = tree.norm(r), tree.norm(tree.axpy(shift, r, operator(r)))
        finite = tree.is_finite(x, r_norm, b_norm)
        rtol = jnp.asarray(1e-8 if jnp.finfo(wide).bits == 64 else 1e-4, wide)
        least_squares = (shift == 0) & (normal <= rtol * norm * r_norm)
        ended = jnp.where(least_squares, Reason.LEAST_SQUARES, Reason.STALLED)
        return Solution(
            x=tree.where(finite, tree.scale(unit, x), tree.zeros_like(x)),
            iterations=jnp.array(1, jnp.int32),
            residual=unit * r_norm,
            normal_residual=unit * normal,
            reason=verdict(ended, meets(r_norm, rtol * b_norm / unit), b_norm, finite),
            space=Space.smaller(operator.height(b), tree.size(b)),
        )


def _solve(solver: Direct, operator: Formed, _: None, b: Tree, shift: Array) -> Solution:
    return solver.run(operator, b, shift)


def _inverse(values: Array, least: Array) -> Array:
    """Return 1 / values, 0 for those that are no larger than `least`."""
    # The test is not "larger": a NaN stays a NaN.
    zero = values <= least
    return jnp.where(zero, 0, 1 / jnp.where(zero, 1, values))
