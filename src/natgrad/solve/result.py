"""What a solver takes and returns, and the only words it may use for how it ended."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from natgrad.part import Named
from natgrad.tree import Tree

LinearMap = Callable[[Tree], Tree]
"""A linear map v ↦ Av on pytrees."""


class Reason(Named):
    """Why a solver stopped. A claim of success is checked against a recomputed residual first."""

    SOLVED = 0
    """The true residual meets the tolerance: ‖b − Ax‖ ≤ rtol ‖b‖, up to the rounding of Ax."""
    LEAST_SQUARES = 1
    """No exact solution exists; x minimizes ‖b − Ax‖: ‖Ar‖ ≤ rtol ‖A‖ ‖r‖."""
    MAXITER = 2
    """The iterations ran out; x is the last iterate. For a truncated solve this is the normal end."""
    PROGRESS = 3
    """The quadratic model stopped improving (Martens' rule); x is good enough for a step, not a solution."""
    X_TOO_LARGE = 4
    """‖x‖ reached its bound: the system is singular or nearly so."""
    ILL_CONDITIONED = 5
    """The estimated condition number reached what the precision can resolve."""
    INDEFINITE = 6
    """The solver met a direction of zero or negative curvature, where the method needs positive curvature."""
    NONFINITE = 7
    """A NaN or an infinity came from A, b, x0 or the preconditioner; x is the last finite iterate."""
    ZERO_RHS = 8
    """b = 0, so x = 0."""
    STALLED = 9
    """The recurrence claimed to be done, but the recomputed residual denies it: rounding allows no more."""


class Space(Named):
    """Where a solve works."""

    KRYLOV = 0
    """In the space that A's products span; no matrix is formed."""
    PARAMETERS = 1
    """A matrix with as many rows as there are parameters is decomposed: the primal."""
    RESIDUALS = 2
    """A matrix with as many rows as there are examples × outputs is decomposed: the dual."""

    @classmethod
    def smaller(cls, height: int, width: int) -> np.int32:
        """Return the space of the smaller side of A, whose `height` counts residuals and whose `width` parameters."""
        return np.int32(cls.PARAMETERS if height >= width else cls.RESIDUALS)


class Solution(NamedTuple):
    """An answer to A x = b with everything needed to judge it."""

    x: Tree
    """The answer: always finite."""
    iterations: Array
    """Iterations done; each is one product with A."""
    residual: Array
    """‖b − Ax‖, recomputed from x by one more product. CG spends that product only on a claim of success, and below
    √eps ‖b‖. Otherwise this is the residual of CG's recurrence, which is accurate above √eps ‖b‖."""
    normal_residual: Array
    """‖A(b − Ax)‖ where the solver computes or estimates it; NaN where it does not."""
    reason: Array
    """A `Reason`, as an integer array."""
    snapshots: Any = None
    """Iterates stored on the way, by `TruncatedCG`."""
    space: Any = np.int32(Space.KRYLOV)
    """Where the solver worked, a `Space`."""
