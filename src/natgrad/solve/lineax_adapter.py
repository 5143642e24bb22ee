"""natgrad's solvers for lineax: `lineax.linear_solve(operator, b, solver=Lineax(MinresQLP()))`."""

from typing import Any

import jax.numpy as jnp

try:
    import lineax
except ImportError as error:
    raise ImportError("natgrad.solve.lineax_adapter needs lineax: pip install 'natgrad[lineax]'.") from error

from natgrad.solve.result import Reason


class Lineax(lineax.AbstractLinearSolver):
    """A lineax solver made of one of natgrad's; the operator must be symmetric and tagged so.

    lineax's `options` may hold `y0` (a start) and `preconditioner` (an operator r ↦ M⁻¹r), as for `lineax.CG`.
    `solution.stats` holds the whole natgrad `Solution` but x.
    """

    solver: Any

    def init(self, operator: Any, options: dict[str, Any]) -> Any:
        """Check the tags; nothing is computed before the solve."""
        del options
        if not (
            lineax.is_symmetric(operator)
            or lineax.is_positive_semidefinite(operator)
            or lineax.is_negative_semidefinite(operator)
            or lineax.is_diagonal(operator)
        ):
            raise ValueError("natgrad's solvers need a symmetric operator; tag it with lineax.symmetric_tag.")
        return operator

    def compute(self, state: Any, vector: Any, options: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """Solve, and translate the reason."""
        preconditioner = options.get("preconditioner")
        inverse = None if preconditioner is None else preconditioner.mv
        solution = self.solver(state.mv, vector, options.get("y0"), inverse)
        stats = {name: value for name, value in solution._asdict().items() if name != "x"}
        return solution.x, _result(solution.reason), stats

    def transpose(self, state: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the same operator: it is symmetric."""
        return state, options

    def conj(self, state: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the same operator: it is real."""
        return state, options

    def assume_full_rank(self) -> bool:
        """Singular operators are welcome: lineax then differentiates through the pseudo-inverse."""
        return False


def _result(reason: Any) -> Any:
    results = lineax.RESULTS
    success = jnp.isin(
        reason, jnp.array([Reason.SOLVED, Reason.LEAST_SQUARES, Reason.ZERO_RHS], reason.dtype)
    )
    stopped = results.where(reason == Reason.MAXITER, results.max_steps_reached, results.breakdown)
    singular = jnp.isin(reason, jnp.array([Reason.X_TOO_LARGE, Reason.ILL_CONDITIONED], reason.dtype))
    stopped = results.where(singular, results.singular, stopped)
    stopped = results.where(reason == Reason.NONFINITE, results.nonfinite_input, stopped)
    return results.where(success, results.successful, stopped)
