"""Preconditioned conjugate gradients, for symmetric positive definite systems."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.solve.problem import AIM, RUNNING, Iterative, meets, residual, verdict
from natgrad.solve.result import LinearMap, Reason, Solution
from natgrad.tree import Tree


@dataclass(frozen=True)
class CG(Iterative):
    """Conjugate gradients (Hestenes & Stiefel 1952): minimize q(x) = ½ xᵀAx − bᵀx over growing Krylov spaces.

    It stops when ‖b − Ax‖ ≤ rtol ‖b‖, or at a direction of curvature pᵀAp ≤ 0, where x stays as it was. Otherwise it
    ends after `maxiter` iterations, the normal end of a truncated solve. When the recurrence claims to be done, one
    more product checks the claim. If the true residual contradicts it, the iteration starts again from there.
    """

    maxiter: int = 20
    """Most iterations."""
    rtol: float = 1e-4
    """Relative residual to reach; 0 runs exactly `maxiter` iterations."""

    def run(self, product: LinearMap, b: Tree, x0: Tree | None, preconditioner: LinearMap | None) -> Solution:
        """Solve A x = b for a given product."""
        return observed(Observer(), self.maxiter, self.rtol, product, b, x0, preconditioner)


class Observer:
    """An observer sees every iterate and may stop the loop. This one does nothing."""

    def start(self, x: Tree, r: Tree, b: Tree) -> Tree:
        """Return what to remember before the first iteration."""
        return ()

    def look(self, memory: Tree, iteration: Array, x: Tree, fall: Array) -> tuple[Tree, Array]:
        """Return the memory after x_k, where q fell by `fall`, and whether to stop."""
        return memory, jnp.array(False)

    def finish(self, memory: Tree, iteration: Array, unit: Array) -> Any:
        """Return what `Solution.snapshots` holds. The iterates are the observed x times `unit`."""
        return None


class _State(NamedTuple):
    iteration: Array
    x: Tree
    r: Tree
    p: Tree
    rz: Array
    rr: Array
    reason: Array
    memory: Tree


class _Attempt(NamedTuple):
    state: _State
    residual: Array
    again: Array


def observed(
    observer: Observer,
    maxiter: int,
    rtol: Any,
    product: LinearMap,
    b: Tree,
    x0: Tree | None,
    preconditioner: LinearMap | None,
) -> Solution:
    """Solve A x = b by conjugate gradients; an observer sees every iterate."""
    b_norm = tree.norm(b)
    rtol = jnp.asarray(rtol, b_norm.dtype)
    start, start_norm = b, b_norm
    if x0 is not None:
        start = residual(product, b, x0)
        start_norm = tree.norm(start)
    # Scaled by a power of two, the squares neither overflow nor underflow and no rounding changes.
    unit = tree.power_of_two(start_norm)
    b = tree.scale(1 / unit, b)
    target = rtol * b_norm / unit
    # With rtol = 0 there is no test, even if rr equals the target 0.
    aim = jnp.where(rtol > 0, (AIM * target) ** 2, -1)
    trusted = jnp.maximum(target, jnp.finfo(target.dtype).eps ** 0.5 * b_norm / unit)
    x = tree.zeros_like(b) if x0 is None else tree.scale(1 / unit, x0)
    r = tree.scale(1 / unit, start)
    z, rz, rr = _preconditioned(preconditioner, r)

    def attempt(tried: _Attempt) -> _Attempt:
        state = jax.lax.while_loop(
            lambda s: (s.reason == RUNNING) & (s.iteration < maxiter),
            lambda s: _step(observer, product, preconditioner, aim, s),
            tried.state,
        )

        def recomputed() -> tuple[Tree, Tree, Array, Array]:
            r = residual(product, b, state.x)
            return r, *_preconditioned(preconditioner, r)

        # One more product checks a claim, and also a residual that the recurrence may have lost in rounding.
        claimed = (state.reason == Reason.SOLVED) | (jnp.sqrt(state.rr) <= trusted)
        r, z, rz, rr = jax.lax.cond(claimed, recomputed, lambda: (state.r, state.p, state.rz, state.rr))
        norm = jnp.sqrt(rr)
        belied = (state.reason == Reason.SOLVED) & (norm > target)
        again = belied & (norm < tried.residual / 2)
        # A loop that starts again continues from the true residual, in the steepest direction.
        reason = jnp.where(again, RUNNING, state.reason)
        return _Attempt(state._replace(r=r, p=z, rz=rz, rr=rr, reason=reason), norm, again)

    # No iteration is needed if b is 0, or if the start is not finite or already good enough.
    ready = jnp.where(meets(start_norm, rtol * b_norm), Reason.SOLVED, RUNNING)
    ready = jnp.where(b_norm == 0, Reason.ZERO_RHS, ready)
    ready = jnp.where(tree.is_finite(rz, rr, b_norm), ready, Reason.NONFINITE).astype(jnp.int32)
    state = _State(jnp.array(0, jnp.int32), x, r, z, rz, rr, ready, observer.start(x, r, b))
    first = _Attempt(state, jnp.full_like(b_norm, jnp.inf), jnp.array(True))
    state, residual_norm, _ = jax.lax.while_loop(lambda t: t.again, attempt, first)

    # One pass decides what the unit makes of x: it may be multiplied by 0, or leave the range.
    usable = jnp.isfinite(tree.length(state.x) * unit)
    scaled = tree.scale(jnp.where(usable & (b_norm > 0), unit, 0), state.x)
    x = tree.where(usable, scaled, tree.zeros_like(scaled))
    finite = usable & jnp.isfinite(residual_norm) & (state.reason != Reason.NONFINITE)
    ended = jnp.where(state.reason == RUNNING, Reason.MAXITER, state.reason)
    return Solution(
        x=x,
        iterations=state.iteration,
        residual=jnp.where(b_norm == 0, b_norm, unit * residual_norm),
        normal_residual=jnp.full_like(b_norm, jnp.nan),
        reason=verdict(ended, meets(residual_norm, target), b_norm, finite),
        snapshots=observer.finish(state.memory, state.iteration, unit),
    )


def _step(
    observer: Observer, product: LinearMap, preconditioner: LinearMap | None, aim: Array, state: _State
) -> _State:
    iteration, x, r, p, rz, rr, _, memory = state
    Ap = product(p)
    curvature = tree.vdot(p, Ap)
    # Far below rounding, where squares would underflow, x no longer moves: the remaining iterations do nothing.
    asleep = rr <= jnp.finfo(rr.dtype).eps ** 4
    positive = (curvature > 0) & (rz > 0)
    alpha = jnp.where(positive & ~asleep, rz / curvature, 0)
    usable = jnp.isfinite(curvature) & jnp.isfinite(alpha)
    alpha = jnp.where(usable, alpha, 0)

    x = tree.axpy(alpha, p, x)
    r = tree.axpy(-alpha, Ap, r)
    z, new_rz, rr = _preconditioned(preconditioner, r)
    beta = jnp.where(asleep | (rz == 0), 0, new_rz / rz)
    p = tree.axpy(beta, p, z)
    iteration = iteration + 1

    # q falls by ½α rᵀz in each step.
    memory, stop = observer.look(memory, iteration, x, alpha * rz / 2)
    reason = jnp.where(stop, Reason.PROGRESS, RUNNING)
    reason = jnp.where(rr <= aim, Reason.SOLVED, reason)
    reason = jnp.where(asleep | positive, reason, Reason.INDEFINITE)
    usable = usable & jnp.isfinite(rr) & jnp.isfinite(new_rz)
    reason = jnp.where(usable, reason, Reason.NONFINITE).astype(jnp.int32)
    return _State(iteration, x, r, p, new_rz, rr, reason, memory)


def _preconditioned(preconditioner: LinearMap | None, r: Tree) -> tuple[Tree, Array, Array]:
    """Return z = M⁻¹r, rᵀz and rᵀr."""
    rr = tree.vdot(r, r)
    if preconditioner is None:
        return r, rr, rr
    z = preconditioner(r)
    return z, tree.vdot(r, z), rr
