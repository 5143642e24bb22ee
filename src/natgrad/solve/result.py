"""What a solver returns, and the only words it may use for how it ended."""

from enum import IntEnum
from typing import Any, NamedTuple

from jax import Array

from natgrad.tree import Tree


class Reason(IntEnum):
    """Why a solver stopped. A claim of success is checked against a recomputed residual first."""

    SOLVED = 0
    """The true residual meets the tolerance: ‖b − Ax‖ ≤ rtol ‖b‖."""
    LEAST_SQUARES = 1
    """No exact solution exists; x minimizes ‖b − Ax‖: ‖Ar‖ ≤ rtol ‖A‖ ‖r‖."""
    MAXITER = 2
    """The iterations ran out; x is the last iterate. For a truncated solve this is the normal end."""
    PROGRESS = 3
    """The quadratic model stopped improving (Martens' rule); x is good enough for a step, not a solution."""
    X_TOO_LARGE = 4
    """‖x‖ reached its bound: the system is singular or nearly so."""
    ILL_CONDITIONED = 5
    """The estimated condition number reached its bound."""
    INDEFINITE = 6
    """A direction of zero or negative curvature where the method needs positive ones."""
    NONFINITE = 7
    """A NaN or an infinity came from A, b, x0 or the preconditioner; x is the last finite iterate."""
    ZERO_RHS = 8
    """b = 0, so x = 0."""
    STALLED = 9
    """The recurrence believed it was done; the recomputed residual denies it: rounding has the last word."""
    BACKWARD_STABLE = 10
    """Only where that test was asked for: ‖r‖ ≤ rtol (‖A‖‖x‖ + ‖b‖), so x solves a system within rtol of yours."""

    @classmethod
    def name_of(cls, reason: Any) -> str:
        """Return the printable name of a (concrete) reason array: `Reason.name_of(solution.reason)`."""
        return cls(int(reason)).name.lower().replace("_", " ")


class Solution(NamedTuple):
    """An answer to A x = b with everything needed to judge it."""

    x: Tree
    """The answer: always finite."""
    iterations: Array
    """Iterations done; each is one product with A."""
    residual: Array
    """‖b − Ax‖, recomputed from x by one more product."""
    normal_residual: Array
    """‖A(b − Ax)‖ where the solver computes or estimates it; NaN where it does not."""
    norm: Array
    """A lower estimate of ‖A‖ from the recurrence, with a preconditioner M of ‖M^−½AM^−½‖; NaN where there is none."""
    condition: Array
    """An estimate of cond(A) from the recurrence, with a preconditioner of cond(M^−½AM^−½); NaN where there is none."""
    reason: Array
    """A `Reason`, as an integer array."""
    snapshots: Any = None
    """Iterates stored on the way, when the solver was asked for them."""
