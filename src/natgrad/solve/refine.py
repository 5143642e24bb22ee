"""The referee: recompute the residual, start again where the recurrence was wrong, and name the end."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.solve.problem import RUNNING, Operator, meets, residual, verdict
from natgrad.solve.result import Reason, Solution
from natgrad.tree import Tree

CLAIMS = (Reason.SOLVED, Reason.LEAST_SQUARES, Reason.X_TOO_LARGE, Reason.ILL_CONDITIONED)
"""Ends after which a denied answer is worth another attempt from its residual."""


class Goal(NamedTuple):
    """What one attempt is asked for."""

    reduction: Array
    """The factor by which ‖r‖ must fall."""
    budget: Array
    """The iterations it may use."""


class Attempt(NamedTuple):
    """What one attempt found, and what it believes of it."""

    x: Tree
    iterations: Array
    norm: Array
    """The recurrence's estimate of the norm: of the preconditioned operator."""
    own_norm: Array
    """A lower estimate of ‖A‖ itself: by it a claim about A is judged."""
    condition: Array
    normal: Array
    """Its estimate of ‖Ar‖."""
    reason: Array


class _Progress(NamedTuple):
    x: Tree
    r: Tree
    residual: Array
    iterations: Array
    norm: Array
    own_norm: Array
    condition: Array
    normal: Array
    reason: Array
    again: Array


def refine(
    krylov: Callable[[Tree, Goal], Attempt],
    product: Operator,
    b: Tree,
    x0: Tree | None,
    rtol: float,
    maxiter: int,
    backward_error: bool,
) -> Solution:
    """Solve A dx = b − Ax with `krylov` until the residual, recomputed from x, is what the recurrence said.

    With `backward_error`, one attempt is made and ‖r‖ ≤ rtol (‖A‖‖x‖ + ‖b‖) has a name of its own.
    """
    b_norm = tree.norm(b)
    target = rtol * b_norm
    r = residual(product, b, x0)
    r_norm = tree.norm(r)
    x = tree.zeros_like(b) if x0 is None else x0

    def attempt(so_far: _Progress) -> _Progress:
        goal = Goal(
            reduction=target / jnp.where(so_far.residual > 0, so_far.residual, 1),
            budget=maxiter - so_far.iterations,
        )
        found = krylov(so_far.r, goal)
        x = tree.add(so_far.x, found.x)
        r = residual(product, b, x)
        r_norm = tree.norm(r)
        met = meets(r_norm, target)
        own_norm = jnp.maximum(so_far.own_norm, found.own_norm)
        # A limit may have stopped a least-squares problem that was done: one more product tells.
        asked = ~met & (found.reason != RUNNING)
        normal = jax.lax.cond(asked, lambda r: tree.norm(product(r)), lambda r: found.normal, r)
        least_squares = asked & (normal <= rtol * own_norm * r_norm) & (rtol > 0)

        # The first answer counts, whatever it is; a second one only if it is better.
        first = so_far.iterations == 0
        shorter = jnp.where(asked, normal, r_norm) < jnp.where(asked, so_far.normal, so_far.residual) / 2
        better = first | met | least_squares | shorter
        iterations = so_far.iterations + found.iterations
        claimed = jnp.isin(found.reason, jnp.array(CLAIMS, found.reason.dtype))
        denied = claimed & ~met & ~least_squares
        # A branch, so that nothing is computed anew for each element.
        kept_x, kept_r = jax.lax.cond(better, lambda: (x, r), lambda: (so_far.x, so_far.r))
        return _Progress(
            x=kept_x,
            r=kept_r,
            residual=jnp.where(better, r_norm, so_far.residual),
            iterations=iterations,
            norm=jnp.maximum(so_far.norm, found.norm),
            own_norm=own_norm,
            condition=jnp.maximum(so_far.condition, found.condition),
            normal=jnp.where(better, normal, so_far.normal),
            reason=jnp.where(least_squares, Reason.LEAST_SQUARES, _denied(found.reason)).astype(jnp.int32),
            again=denied & better & (iterations < maxiter) & (not backward_error),
        )

    nothing = jnp.full_like(b_norm, jnp.inf)
    zero = jnp.zeros_like(b_norm)
    ready = jnp.where(meets(r_norm, target), Reason.SOLVED, RUNNING).astype(jnp.int32)
    count = jnp.array(0, jnp.int32)
    start = _Progress(x, r, r_norm, count, zero, zero, zero, nothing, ready, ready == RUNNING)
    end = jax.lax.while_loop(lambda s: s.again, attempt, start)

    met = meets(end.residual, target)
    reason = end.reason
    if backward_error:
        stable = ~met & (end.residual <= rtol * (end.own_norm * tree.norm(end.x) + b_norm))
        reason = jnp.where(stable & (reason == Reason.STALLED), Reason.BACKWARD_STABLE, reason)

    x = tree.where(b_norm == 0, tree.zeros_like(b), end.x)
    finite = tree.is_finite(x, end.residual, b_norm) & (end.reason != Reason.NONFINITE)
    return Solution(
        x=tree.where(tree.is_finite(x), x, tree.zeros_like(x)),
        iterations=end.iterations,
        residual=jnp.where(b_norm == 0, b_norm, end.residual),
        normal_residual=jnp.where(b_norm == 0, b_norm, end.normal),
        norm=end.norm,
        condition=end.condition,
        reason=verdict(reason, met, b_norm, finite),
    )


def _denied(reason: Array) -> Array:
    """Name the end of an attempt whose claim, if it made one, the residual did not bear out."""
    claimed = (reason == Reason.SOLVED) | (reason == Reason.LEAST_SQUARES)
    return jnp.where(reason == RUNNING, Reason.MAXITER, jnp.where(claimed, Reason.STALLED, reason))
