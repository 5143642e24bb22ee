"""The scalars of MINRES and MINRES-QLP: one column of the factorization, the rank decision, the stopping tests."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.solve.minres_vectors import minres_map, qlp_map, qlp_map_after_minres, stay
from natgrad.solve.problem import AIM, RUNNING
from natgrad.solve.refine import Goal
from natgrad.solve.reflections import Left, Right, left_start, left_step, right_start, right_step
from natgrad.solve.result import Reason


class Rules(NamedTuple):
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


def rules_for(solver: Any, always_minres: bool, dtype: Any, unit: Array, goal: Goal) -> Rules:
    """Translate a solver's fields for one attempt, whose right-hand side was divided by `unit`."""
    precision = jnp.finfo(dtype)
    max_length = 1e5 if precision.bits == 64 else 1e3
    max_condition = solver.max_condition or min(0.1 / float(precision.eps), 1e15)
    return Rules(
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


class Scalars(NamedTuple):
    """What is known after k columns."""

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


def initial(rules: Rules, beta: Array) -> Scalars:
    """Before the first column."""
    zero, one = jnp.zeros_like(beta), jnp.ones_like(beta)
    return Scalars(
        left=left_start(beta),
        right=right_start(beta),
        in_qlp=jnp.array(rules.qlp_condition <= 1),
        norm=zero,
        condition=one,
        least=zero,
        least_1=zero,
        relative_residual=one,
        relative_normal=one,
        normal=zero,
    )


def advance(
    rules: Rules, old: Scalars, first: Array, beta_1: Array, beta: Array, alpha: Array, next_beta: Array
) -> tuple[Scalars, Array, Array]:
    """Take in column k of the Lanczos matrix; return the scalars, the map of the vectors and the reason."""
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
    # With a preconditioner M, lengths here are those of M^½x, and β_1 that of M^−½b, which may be far from 1.
    unit = tree.power_of_two(beta_1)
    max_length = rules.max_length if rules.absolute_length else unit * rules.max_length / norm
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

    new = Scalars(
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
    return (
        tree.where(too_late, old, new),
        jnp.where(too_late, stay(moves.dtype), moves),
        jnp.where(too_late, Reason.X_TOO_LARGE, reason).astype(jnp.int32),
    )
