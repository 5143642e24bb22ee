"""MINRES-QLP: the minimum-length solution of symmetric systems, singular and inconsistent ones included."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.solve import lanczos
from natgrad.solve.minres_scalars import Rules, Scalars, advance, initial, rules_for
from natgrad.solve.minres_vectors import Vectors, assemble, move, stay
from natgrad.solve.problem import RUNNING, Operator, solve_implicitly
from natgrad.solve.refine import Attempt, Goal, refine
from natgrad.solve.result import Reason, Solution
from natgrad.tree import Tree

SINGULAR = (Reason.LEAST_SQUARES, Reason.X_TOO_LARGE, Reason.ILL_CONDITIONED)
"""Ends at a direction in which A is singular, or nearly so: the last component of x lies along it."""


@dataclass(frozen=True)
class MinresQLP:
    """MINRES-QLP (Choi, Paige & Saunders 2011): x = A⁺b, the shortest minimizer of ‖b − Ax‖, A symmetric.

    Stops when ‖b − Ax‖ ≤ rtol ‖b‖ (solved) or ‖Ar‖ ≤ rtol ‖A‖‖r‖ (least squares). Then, and at a bound, the last
    component of x, the one along the nearly singular direction, is left out: the official code keeps it on a
    least-squares stop, where x is a minimizer but far from the shortest one. Use rtol ≤ 1e-8 for A⁺b to six
    digits.
    """

    maxiter: int | None = None
    """Most iterations; None means 4n for n unknowns."""
    rtol: float = 1e-5
    """Relative tolerance of both tests; 0 switches the tests off and runs `maxiter` iterations."""
    maxxnorm: float | None = None
    """Bound on ‖x‖, which decides the rank: a component that would exceed it is left out. None means 10⁵‖b‖/‖A‖
    in float64 and 10³‖b‖/‖A‖ in float32 (‖b‖ rounded to a power of two), and only where the problem looks like
    least squares, so that ill-conditioned systems may still be solved."""
    max_condition: float | None = None
    """Bound on the estimate of cond(A) (`Acondlim`); None means 0.1/eps of the dtype, at most 10¹⁵."""
    qlp_condition: float = 1.0
    """Estimate of cond(A) from which on the QLP vectors replace the MINRES vectors (`TranCond`): 1 means at
    once. Both cost the same here; the official code starts with MINRES up to 10⁷."""
    backward_error: bool = False
    """Stop on the official test ‖r‖ ≤ rtol (‖A‖‖x‖ + ‖b‖) instead. It can hold long before ‖r‖ ≤ rtol ‖b‖ does,
    and then the reason is BACKWARD_STABLE, not SOLVED."""

    reorthogonalize: int = 0
    """Make each Lanczos vector orthogonal to this many before it, which are kept in memory. Ill-conditioned
    indefinite systems then need about n iterations instead of many times n."""

    def __call__(
        self,
        matvec: Operator,
        b: Tree,
        x0: Tree | None = None,
        precondition: Operator | None = None,
        shift: Any = None,
    ) -> Solution:
        """Solve (A + shift·I) x = b; from x0, solve for x − x0, which then has the minimum length.

        `precondition` maps r to M⁻¹r, M positive definite.
        """
        return solve_minres(self, matvec, b, x0, precondition, shift, always_minres=False)


def solve_minres(
    solver: Any,
    matvec: Operator,
    b: Tree,
    x0: Tree | None,
    precondition: Operator | None,
    shift: Any,
    always_minres: bool,
) -> Solution:
    """Run the recurrence of this file, which serves both methods, and check what it claims."""
    unknowns = sum(leaf.size for leaf in jax.tree.leaves(b))
    maxiter = 4 * unknowns if solver.maxiter is None else solver.maxiter

    def run(product: Operator, b: Tree, x0: Tree | None, precondition: Operator | None) -> Solution:
        def krylov(r: Tree, goal: Goal) -> Attempt:
            unit = tree.power_of_two(tree.norm(r))
            scaled = tree.scale(1 / unit, r)
            rules = rules_for(solver, always_minres, tree.dtype(r), unit, goal)
            found = _krylov(rules, product, precondition, scaled)
            return found._replace(x=tree.scale(unit, found.x), normal=unit * found.normal)

        return refine(krylov, product, b, x0, solver.rtol, maxiter, solver.backward_error)

    return solve_implicitly(run, matvec, b, x0, precondition, shift)


class _State(NamedTuple):
    iteration: Array
    lanczos: lanczos.Lanczos
    scalars: Scalars
    vectors: Vectors
    reason: Array


def _krylov(rules: Rules, product: Operator, precondition: Operator | None, b: Tree) -> Attempt:
    """Solve A x = b from zero until the goal, a limit or a breakdown."""
    state = _initial(rules, lanczos.start(b, precondition, rules.reorthogonalize))
    beta = state.lanczos.beta
    state = jax.lax.while_loop(
        lambda s: (s.reason == RUNNING) & (s.iteration < rules.budget),
        lambda s: _step(rules, product, precondition, beta, s),
        state,
    )
    scalars = state.scalars
    if rules.always_minres:
        x = state.vectors.sum
    else:
        drop_last = jnp.isin(state.reason, jnp.array(SINGULAR, jnp.int32))
        x = assemble(state.vectors, scalars.right, scalars.in_qlp, drop_last)
    norm, stretch = scalars.norm, state.lanczos.stretch
    own = norm if stretch is None else stretch
    return Attempt(x, state.iteration, norm, own, scalars.condition, scalars.normal, state.reason)


def _initial(rules: Rules, start: lanczos.Lanczos) -> _State:
    zeros = tree.zeros_like(start.newer)
    return _State(
        iteration=jnp.array(0, jnp.int32),
        lanczos=start,
        scalars=initial(rules, start.beta),
        vectors=Vectors(zeros, zeros, zeros),
        reason=_unless_broken(start, jnp.array(RUNNING)),
    )


def _step(
    rules: Rules, product: Operator, precondition: Operator | None, beta_1: Array, state: _State
) -> _State:
    first, beta = state.iteration == 0, state.lanczos.beta
    v, alpha, ahead = lanczos.step(product, precondition, state.lanczos)

    def take() -> tuple[Scalars, Array, Array]:
        return advance(rules, state.scalars, first, beta_1, beta, alpha, ahead.beta)

    def leave() -> tuple[Scalars, Array, Array]:
        return state.scalars, stay(alpha.dtype), jnp.array(RUNNING, jnp.int32)

    # A space that is exhausted (β_k = 0) and a step that is not finite leave everything as it was. A branch
    # rather than a choice: its results are stored, where a choice would be computed anew for each element.
    scalars, moves, reason = jax.lax.cond((beta > 0) & jnp.isfinite(ahead.beta), take, leave)
    vectors = move(moves, v, state.vectors)
    following = lanczos.proceed(ahead, vectors.newer)
    return _State(
        iteration=state.iteration + 1,
        lanczos=following,
        scalars=scalars,
        vectors=vectors,
        reason=_unless_broken(following, reason),
    )


def _unless_broken(state: lanczos.Lanczos, reason: Array) -> Array:
    """Name a preconditioner that is not positive definite, and a NaN before anything else."""
    reason = jnp.where(state.squared < 0, Reason.INDEFINITE, reason)
    return jnp.where(jnp.isfinite(state.squared), reason, Reason.NONFINITE).astype(jnp.int32)
