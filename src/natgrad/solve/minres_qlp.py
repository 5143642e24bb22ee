"""MINRES-QLP: the minimum-length solution of symmetric systems, singular and inconsistent ones included."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.solve import lanczos
from natgrad.solve.minres_vectors import (
    Vectors,
    assemble,
    minres_map,
    move,
    qlp_map,
    qlp_map_after_minres,
    stay,
)
from natgrad.solve.problem import AIM, RUNNING, Operator, solve_implicitly
from natgrad.solve.refine import Attempt, Goal, refine
from natgrad.solve.reflections import Left, Right, left_start, left_step, right_start, right_step
from natgrad.solve.result import Reason, Solution
from natgrad.tree import Tree


@dataclass(frozen=True)
class MinresQLP:
    """MINRES-QLP (Choi, Paige & Saunders 2011): x = A⁺b, the shortest minimizer of ‖b − Ax‖, A symmetric.

    Stops when ‖b − Ax‖ ≤ rtol ‖b‖ (solved) or ‖Ar‖ ≤ rtol ‖A‖‖r‖ (least squares). On a least-squares stop the
    last component of x, the one along the nearly singular direction, is left out: the official code keeps it,
    and then x is a minimizer but far from the shortest one. Use rtol ≤ 1e-8 for A⁺b to six digits.
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
            rules = _rules(solver, always_minres, tree.dtype(r), unit, goal)
            found = _krylov(rules, product, precondition, scaled)
            return found._replace(x=tree.scale(unit, found.x), normal=unit * found.normal)

        return refine(krylov, product, b, x0, solver.rtol, maxiter, solver.backward_error)

    return solve_implicitly(run, matvec, b, x0, precondition, shift)


class _Rules(NamedTuple):
    """When to stop, for a right-hand side of length about 1."""

    always_minres: bool
    qlp_condition: float
    backward_error: bool
    rtol: float
    max_condition: float
    max_length: Array
    absolute_length: bool
    """Whether ‖x‖ itself is bounded, always, or ‖A‖‖x‖/‖b‖, when the problem looks like least squares."""
    reorthogonalize: int
    reduction: Array
    budget: Array


def _rules(solver: Any, always_minres: bool, dtype: Any, unit: Array, goal: Goal) -> _Rules:
    precision = jnp.finfo(dtype)
    max_length = 1e5 if precision.bits == 64 else 1e3
    max_condition = solver.max_condition or min(0.1 / float(precision.eps), 1e15)
    return _Rules(
        always_minres=always_minres,
        qlp_condition=1.0 if always_minres else solver.qlp_condition,
        backward_error=solver.backward_error,
        rtol=solver.rtol and max(solver.rtol, float(precision.eps)),
        max_condition=max_condition,
        max_length=jnp.asarray(max_length, dtype) if solver.maxxnorm is None else solver.maxxnorm / unit,
        absolute_length=solver.maxxnorm is not None,
        reorthogonalize=solver.reorthogonalize,
        reduction=AIM * goal.reduction,
        budget=goal.budget,
    )


class _Scalars(NamedTuple):
    left: Left
    right: Right
    in_qlp: Array
    """Whether the vectors are QLP's already."""
    norm: Array
    condition: Array
    least: Array
    least_1: Array
    """The least |γ| so far, and one step before."""
    relative_residual: Array
    """‖r_k‖ / (‖A‖‖x_k‖ + ‖b‖)."""
    relative_normal: Array
    """‖A r_{k−1}‖ / (‖A‖‖r_{k−1}‖): known one step late."""
    normal: Array
    """‖A r_{k−1}‖."""


class _State(NamedTuple):
    iteration: Array
    lanczos: lanczos.Lanczos
    scalars: _Scalars
    vectors: Vectors
    reason: Array


def _krylov(rules: _Rules, product: Operator, precondition: Operator | None, b: Tree) -> Attempt:
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
        drop_last = (state.reason == Reason.LEAST_SQUARES) | (state.reason == Reason.X_TOO_LARGE)
        x = assemble(state.vectors, scalars.right, scalars.in_qlp, drop_last)
    return Attempt(x, state.iteration, scalars.norm, scalars.condition, scalars.normal, state.reason)


def _initial(rules: _Rules, start: lanczos.Lanczos) -> _State:
    zero, one = jnp.zeros_like(start.beta), jnp.ones_like(start.beta)
    scalars = _Scalars(
        left=left_start(start.beta),
        right=right_start(start.beta),
        in_qlp=jnp.array(rules.qlp_condition <= 1),
        norm=zero,
        condition=one,
        least=zero,
        least_1=zero,
        relative_residual=one,
        relative_normal=one,
        normal=zero,
    )
    zeros = tree.zeros_like(start.newer)
    return _State(
        iteration=jnp.array(0, jnp.int32),
        lanczos=start,
        scalars=scalars,
        vectors=Vectors(zeros, zeros, zeros),
        reason=_unless_broken(start, jnp.array(RUNNING)),
    )


def _step(
    rules: _Rules, product: Operator, precondition: Operator | None, beta_1: Array, state: _State
) -> _State:
    old = state.scalars
    beta = state.lanczos.beta
    v, alpha, next_lanczos = lanczos.step(product, precondition, state.lanczos)
    next_beta = next_lanczos.beta

    first = state.iteration == 0
    left, column = left_step(old.left, alpha, next_beta)
    right, outer, inner = right_step(old.right, column, left.epsilon, first)

    width = jnp.sqrt(jnp.where(first, 0, beta) ** 2 + alpha**2 + next_beta**2)
    gamma = jnp.abs(right.gamma)
    norm = jnp.maximum(jnp.maximum(old.norm, width), jnp.maximum(right.gamma_1, gamma))
    least = jnp.where(first, gamma, jnp.minimum(jnp.minimum(old.least_1, right.gamma_1), gamma))
    tiny = jnp.finfo(norm.dtype).tiny
    condition = norm / jnp.maximum(least, tiny)
    relative_normal = column.normal / jnp.maximum(norm, tiny)

    # The rank decision: leave out a last component that would make x too long, if the problem looks like least
    # squares (TOMS algorithm 937).
    settled = jnp.hypot(right.chi, right.mu_1)
    singular = gamma <= tiny
    max_length = rules.max_length if rules.absolute_length else rules.max_length / norm
    like_least_squares = jnp.minimum(old.relative_normal, relative_normal) < old.relative_residual
    bounded = like_least_squares | rules.absolute_length
    overlong = (jnp.hypot(settled, right.mu) > max_length) & bounded
    # The blow-up may show first in the component before the last: then the step before it was the last good one.
    too_late = (settled >= max_length) & bounded
    cut = singular | overlong
    right = right._replace(mu=jnp.where(cut, 0, right.mu))
    length = jnp.hypot(settled, right.mu)
    relative_residual = left.phi / (norm * length + beta_1)

    reason = jnp.where(singular | (condition >= rules.max_condition), Reason.ILL_CONDITIONED, RUNNING)
    reason = jnp.where(overlong, Reason.X_TOO_LARGE, reason)
    if rules.rtol > 0:
        eps = jnp.finfo(norm.dtype).eps
        reason = jnp.where(norm * length * eps >= beta_1, Reason.STALLED, reason)
        reason = jnp.where(relative_normal <= rules.rtol, Reason.LEAST_SQUARES, reason)
        met = (
            relative_residual <= rules.rtol if rules.backward_error else left.phi <= rules.reduction * beta_1
        )
        reason = jnp.where(met | (relative_residual <= eps), Reason.SOLVED, reason)

    if rules.always_minres:
        in_qlp, moves = old.in_qlp, minres_map(column, cut)
    elif rules.qlp_condition <= 1:
        in_qlp, moves = old.in_qlp, qlp_map(right, outer, inner)
    else:
        in_qlp, moves = old.in_qlp | (condition >= rules.qlp_condition), qlp_map(right, outer, inner)
        passage = jnp.where(old.in_qlp, moves, qlp_map_after_minres(moves, old.right))
        moves = jnp.where(in_qlp, passage, minres_map(column, cut))

    # A space that is exhausted (β_k = 0) and a step that is too late or not finite leave everything as it was.
    exhausted = beta == 0
    reason = jnp.where(too_late, Reason.X_TOO_LARGE, reason)
    reason = _unless_broken(next_lanczos, jnp.where(exhausted, RUNNING, reason))
    usable = jnp.isfinite(next_beta) & ~exhausted & ~too_late
    new = _Scalars(
        left=left,
        right=right,
        in_qlp=in_qlp,
        norm=norm,
        condition=condition,
        least=least,
        least_1=jnp.where(first, least, old.least),
        relative_residual=relative_residual,
        relative_normal=relative_normal,
        normal=old.left.phi * column.normal,
    )
    return _State(
        iteration=state.iteration + 1,
        lanczos=next_lanczos,
        scalars=tree.where(usable, new, old),
        vectors=move(jnp.where(usable, moves, stay(moves)), v, state.vectors),
        reason=reason,
    )


def _unless_broken(state: lanczos.Lanczos, reason: Array) -> Array:
    """Test for NaN first: β is NaN after one in A or M, and when M is not positive definite."""
    squared = tree.vdot(state.newer, state.direction)
    reason = jnp.where(squared < 0, Reason.INDEFINITE, reason)
    return jnp.where(jnp.isfinite(squared), reason, Reason.NONFINITE).astype(jnp.int32)
