"""MINRES, for symmetric systems that may be indefinite."""

from dataclasses import dataclass
from typing import Any

from natgrad.solve.minres_qlp import solve_minres
from natgrad.solve.problem import Operator
from natgrad.solve.result import Solution
from natgrad.tree import Tree


@dataclass(frozen=True)
class MINRES:
    """MINRES (Paige & Saunders 1975): x_k minimizes ‖b − Ax‖ over growing Krylov spaces, A symmetric.

    The recurrence of `MinresQLP` with other vectors, at the same cost. On singular consistent systems it finds the
    shortest solution too; on inconsistent ones some minimizer, not the shortest, and `MinresQLP` is the one to
    use. The fields mean what they mean there.
    """

    maxiter: int | None = None
    """Most iterations; None means 4n for n unknowns."""
    rtol: float = 1e-5
    """Relative tolerance of both tests; 0 switches the tests off and runs `maxiter` iterations."""
    maxxnorm: float | None = None
    """Bound on ‖x‖; None means 10⁵‖b‖/‖A‖ in float64, 10³‖b‖/‖A‖ in float32, on least squares."""
    max_condition: float | None = None
    """Bound on the estimate of cond(A)."""
    backward_error: bool = False
    """Stop on ‖r‖ ≤ rtol (‖A‖‖x‖ + ‖b‖) instead."""
    reorthogonalize: int = 0
    """Make each Lanczos vector orthogonal to this many before it."""

    def __call__(
        self,
        matvec: Operator,
        b: Tree,
        x0: Tree | None = None,
        precondition: Operator | None = None,
        shift: Any = None,
    ) -> Solution:
        """Solve (A + shift·I) x = b; from x0, solve for x − x0. `precondition` maps r to M⁻¹r."""
        return solve_minres(self, matvec, b, x0, precondition, shift, always_minres=True)
