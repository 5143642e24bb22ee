"""What every solver does around its recurrence: the shift, the implicit derivative, the final verdict."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.part import Part
from natgrad.solve.program import program
from natgrad.solve.result import LinearMap, Reason, Solution
from natgrad.tree import Tree

RUNNING = -1
"""The value of `reason` while a loop runs."""

AIM = 0.9
"""A loop stops at this fraction of the tolerance, so that the recomputed residual, which rounding moves,
still meets the tolerance itself."""


class Iterative(Part):
    """A solver that knows A by its products. Each subclass defines `run`."""

    def __call__(
        self,
        matvec: LinearMap,
        b: Tree,
        x0: Tree | None = None,
        preconditioner: LinearMap | None = None,
        shift: Any = None,
    ) -> Solution:
        """Solve (A + shift·I) x = b from x0; `preconditioner` maps r to M⁻¹r, M positive definite.

        The answer has the derivative dx = A⁻¹(db − dA x), never that of the loop.
        """
        for leaf in jax.tree.leaves(b):
            kind = jnp.asarray(leaf).dtype
            if not jnp.issubdtype(kind, jnp.floating):
                raise TypeError(f"A solver needs a right-hand side of real floating numbers: got {kind}.")
        b, x0, shift = jax.tree.map(jnp.asarray, (b, x0, shift))
        return program(_solve, self, matvec, preconditioner)(b, x0, shift)

    def run(self, product: LinearMap, b: Tree, x0: Tree | None, preconditioner: LinearMap | None) -> Solution:
        """Solve A x = b for a given product."""
        raise NotImplementedError


def _solve(
    solver: Iterative,
    matvec: LinearMap,
    preconditioner: LinearMap | None,
    b: Tree,
    x0: Tree | None,
    shift: Any,
) -> Solution:
    # The product appears in the loop, in the check and in the derivative: jit traces it once for all of them.
    @jax.jit
    def product(v: Tree) -> Tree:
        return matvec(v) if shift is None else tree.axpy(shift, v, matvec(v))

    def solve(product: LinearMap, rhs: Tree) -> tuple[Tree, Solution]:
        # A derivative arrives here with a right-hand side of its own, for which x0 means nothing.
        start = None if x0 is None else tree.where(_equal(rhs, b), x0, tree.zeros_like(x0))
        solution = solver.run(product, rhs, start, preconditioner)
        return solution.x, solution._replace(x=None)

    x, rest = jax.lax.custom_linear_solve(product, b, solve, symmetric=True, has_aux=True)
    return rest._replace(x=x)


def residual(product: LinearMap, b: Tree, x: Tree | None) -> Tree:
    """Return b − Ax; no product is spent on A·0."""
    return b if x is None else tree.sub(b, product(x))


def meets(residual_norm: Array, target: Array) -> Array:
    """Tell whether a residual is small enough; with rtol = 0 only an exact zero is."""
    return (residual_norm <= target) & ((target > 0) | (residual_norm == 0))


def verdict(reason: Array, met: Array, b_norm: Array, finite: Array) -> Array:
    """Let the recomputed residual overrule the loop: only it may say SOLVED, and NaN is tested first."""
    denied = jnp.where(reason == Reason.SOLVED, Reason.STALLED, reason)
    checked = jnp.where(met, Reason.SOLVED, denied)
    checked = jnp.where(b_norm == 0, Reason.ZERO_RHS, checked)
    return jnp.where(finite, checked, Reason.NONFINITE).astype(jnp.int32)


def _equal(x: Tree, y: Tree) -> Array:
    same = [jnp.all(u == v) for u, v in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)]
    return jnp.all(jnp.stack(same))
