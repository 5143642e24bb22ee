"""Preconditioned conjugate gradients, for symmetric positive definite systems."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.solve.problem import AIM, RUNNING, Operator, meets, residual, solve_implicitly, verdict
from natgrad.solve.result import Reason, Solution
from natgrad.tree import Tree


@dataclass(frozen=True)
class CG:
    """Conjugate gradients (Hestenes & Stiefel 1952): minimize q(x) = ½ xᵀAx − bᵀx over growing Krylov spaces.

    Stops when ‖b − Ax‖ ≤ rtol ‖b‖, on a direction of curvature pᵀAp ≤ 0 (x stays where it was), or after
    `maxiter` iterations, the normal end of a truncated solve. If the residual recomputed at the end belies
    the recurrence, the iteration starts again from it.
    """

    maxiter: int = 20
    """Most iterations."""
    rtol: float = 1e-4
    """Relative residual to reach; 0 runs exactly `maxiter` iterations."""
    progress: float | None = None
    """Martens' ε (his value: 5e-4): stop once q gained less than a fraction ε per iteration over the last
    K = max(10, ⌈k/10⌉), that is when k > K, q_k < 0 and (q_k − q_{k−K})/q_k < Kε (Martens 2010)."""
    snapshots: bool = False
    """Keep the iterates k = ⌈5·1.3ʲ⌉ and the last one in `Solution.snapshots`."""

    def __call__(
        self,
        matvec: Operator,
        b: Tree,
        x0: Tree | None = None,
        precondition: Operator | None = None,
        shift: Any = None,
    ) -> Solution:
        """Solve (A + shift·I) x = b from x0; `precondition` maps r to M⁻¹r."""
        return solve_implicitly(self._run, matvec, b, x0, precondition, shift)

    def _run(self, product: Operator, b: Tree, x0: Tree | None, precondition: Operator | None) -> Solution:
        b_norm = tree.norm(b)
        start, start_norm = b, b_norm
        if x0 is not None:
            start = residual(product, b, x0)
            start_norm = tree.norm(start)
        # Scaled by a power of two, the squares neither overflow nor underflow and no rounding changes.
        unit = tree.power_of_two(start_norm)
        b = tree.scale(1 / unit, b)
        target = self.rtol * b_norm / unit
        x = tree.zeros_like(b) if x0 is None else tree.scale(1 / unit, x0)
        state = _initial(self, x, tree.scale(1 / unit, start), b, precondition)

        def attempt(tried: "_Attempt") -> "_Attempt":
            state = jax.lax.while_loop(
                lambda s: (s.reason == RUNNING) & (s.iteration < self.maxiter),
                lambda s: _step(self, product, precondition, AIM * target, s),
                tried.state,
            )
            r = residual(product, b, state.x)
            z, rz, rr = _preconditioned(precondition, r)
            norm = jnp.sqrt(rr)
            belied = (state.reason == Reason.SOLVED) & (norm > target)
            again = belied & (norm < tried.residual / 2)
            # A loop that starts again goes on from the true residual, in the steepest direction.
            reason = jnp.where(again, RUNNING, state.reason)
            return _Attempt(state._replace(r=r, p=z, rz=rz, rr=rr, reason=reason), norm, again)

        # A start that is not finite, or already good enough, or a zero b needs no iteration.
        ready = jnp.where(meets(start_norm, self.rtol * b_norm), Reason.SOLVED, state.reason)
        ready = jnp.where(b_norm == 0, Reason.ZERO_RHS, ready)
        state = state._replace(
            reason=jnp.where(tree.is_finite(state.rz, state.rr, b_norm), ready, Reason.NONFINITE)
        )
        first = _Attempt(state, jnp.full_like(b_norm, jnp.inf), jnp.array(True))
        state, residual_norm, _ = jax.lax.while_loop(lambda t: t.again, attempt, first)

        # What 0 times the unit, or a unit beyond the range, makes of x is decided here, in one pass.
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
            norm=state.norm,
            condition=state.norm * state.longest,
            reason=verdict(ended, meets(residual_norm, target), b_norm, finite),
            snapshots=_finish(self, state, unit) if self.snapshots else None,
        )


class Snapshots(NamedTuple):
    """Iterates on a geometric grid, oldest first, the last iterate last."""

    iterates: Tree
    """Stacked along a new leading axis of static length; rows from `stored` on mean nothing."""
    iterations: Array
    """The iteration each row belongs to."""
    stored: Array
    """How many rows are valid."""


class _State(NamedTuple):
    iteration: Array
    x: Tree
    r: Tree
    p: Tree
    rz: Array
    rr: Array
    alpha: Array
    beta: Array
    norm: Array
    longest: Array
    reason: Array
    values: Array | None
    snapshots: Snapshots | None


class _Attempt(NamedTuple):
    state: _State
    residual: Array
    again: Array


def _initial(solver: CG, x: Tree, r: Tree, b: Tree, precondition: Operator | None) -> _State:
    z, rz, rr = _preconditioned(precondition, r)
    zero = jnp.zeros_like(rr)
    values = snapshots = None
    if solver.progress is not None:
        # q(x) = ½xᵀAx − bᵀx = −½ xᵀ(r + b).
        values = jnp.zeros(solver.maxiter + 1, rr.dtype).at[0].set(-tree.vdot(x, tree.add(r, b)) / 2)
    if solver.snapshots:
        rows = len(snapshot_iterations(solver.maxiter)) + 1
        stack = jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype).at[0].set(leaf), x)
        snapshots = Snapshots(stack, jnp.zeros(rows, jnp.int32), jnp.array(0, jnp.int32))
    running = jnp.array(RUNNING, jnp.int32)
    start = jnp.array(0, jnp.int32)
    return _State(start, x, r, z, rz, rr, zero, zero, zero, zero, running, values, snapshots)


def _step(
    solver: CG, product: Operator, precondition: Operator | None, target: Array, state: _State
) -> _State:
    iteration, x, r, p, rz, rr, *_ = state
    Ap = product(p)
    curvature = tree.vdot(p, Ap)
    # Far below rounding, where squares would underflow, x has long stopped moving: let the iterations pass.
    asleep = rr <= jnp.finfo(rr.dtype).eps ** 4
    positive = (curvature > 0) & (rz > 0)
    alpha = jnp.where(positive & ~asleep, rz / curvature, 0)
    usable = jnp.isfinite(curvature) & jnp.isfinite(alpha)
    alpha = jnp.where(usable, alpha, 0)

    x = tree.axpy(alpha, p, x)
    r = tree.axpy(-alpha, Ap, r)
    z, new_rz, rr = _preconditioned(precondition, r)
    beta = jnp.where(asleep | (rz == 0), 0, new_rz / rz)
    p = tree.axpy(beta, p, z)
    iteration = iteration + 1

    reason = jnp.full_like(state.reason, RUNNING)
    values = snapshots = None
    if state.values is not None and solver.progress is not None:
        # q falls by ½α rᵀz in each step.
        value = state.values[iteration - 1] - alpha * rz / 2
        values = state.values.at[iteration].set(value)
        reason = jnp.where(_stagnates(values, iteration, solver.progress), Reason.PROGRESS, reason)
    if state.snapshots is not None:
        snapshots = _store(state.snapshots, x, iteration, solver.maxiter)
    if solver.rtol > 0:
        reason = jnp.where(rr <= target**2, Reason.SOLVED, reason)
    reason = jnp.where(asleep | positive, reason, Reason.INDEFINITE)
    usable = usable & jnp.isfinite(rr) & jnp.isfinite(new_rz)
    reason = jnp.where(usable, reason, Reason.NONFINITE)
    norm, longest = _spectrum(state, alpha, beta)
    return _State(iteration, x, r, p, new_rz, rr, alpha, beta, norm, longest, reason, values, snapshots)


def _preconditioned(precondition: Operator | None, r: Tree) -> tuple[Tree, Array, Array]:
    """Return z = M⁻¹r, rᵀz and rᵀr."""
    rr = tree.vdot(r, r)
    if precondition is None:
        return r, rr, rr
    z = precondition(r)
    return z, tree.vdot(r, z), rr


def _spectrum(state: _State, alpha: Array, beta: Array) -> tuple[Array, Array]:
    """Update lower estimates of ‖A‖ and 1/λ_min from CG's Lanczos matrix T = LDLᵀ, D = diag(1/α_k).

    ‖T eₖ‖ ≤ ‖A‖ with T_kk = 1/α_k + β_{k−1}/α_{k−1}, T_{k+1,k} = √β_k/α_k; λ_min ≤ 1/α_k.
    """
    stepped = alpha > 0
    step = jnp.where(stepped, alpha, 1)
    previous = jnp.where(state.alpha > 0, state.alpha, 1)
    diagonal = 1 / step + state.beta / previous
    column = diagonal**2 + beta / step**2 + state.beta / previous**2
    largest = jnp.where(stepped & jnp.isfinite(column), jnp.sqrt(jnp.maximum(column, 0)), 0)
    return jnp.maximum(state.norm, largest), jnp.maximum(state.longest, alpha)


def _stagnates(values: Array, k: Array, epsilon: float) -> Array:
    """Martens' rule on the recorded values q_0 … q_k."""
    window = jnp.maximum(10, -(-k // 10))
    gained = values[k] - values[jnp.maximum(k - window, 0)]
    bound = window.astype(values.dtype) * epsilon
    return (k > window) & (values[k] < 0) & (gained / values[k] < bound)


def snapshot_iterations(maxiter: int) -> tuple[int, ...]:
    """Return the grid ⌈5·1.3ʲ⌉ ≤ maxiter (Martens' code; his paper has ⌈1.3ʲ⌉)."""
    grid: list[int] = []
    while (k := math.ceil(5 * 1.3 ** len(grid))) <= maxiter:
        grid.append(k)
    return tuple(grid)


def _store(snapshots: Snapshots, x: Tree, iteration: Array, maxiter: int) -> Snapshots:
    """Write x in the first free row, which is kept only if the iteration is on the grid."""
    row = snapshots.stored
    stack = jax.tree.map(lambda rows, leaf: rows.at[row].set(leaf), snapshots.iterates, x)
    kept = jnp.any(iteration == jnp.array(snapshot_iterations(maxiter), jnp.int32))
    return Snapshots(stack, snapshots.iterations.at[row].set(iteration), row + kept.astype(row.dtype))


def _finish(solver: CG, state: _State, unit: Array) -> Snapshots:
    """Count the last iterate, which waits in the first free row unless it was on the grid."""
    snapshots = state.snapshots
    assert snapshots is not None
    latest = snapshots.iterations[jnp.maximum(snapshots.stored - 1, 0)]
    waiting = (snapshots.stored == 0) | (latest != state.iteration)
    iterates = tree.scale(unit, snapshots.iterates)
    return snapshots._replace(
        iterates=iterates, stored=snapshots.stored + waiting.astype(snapshots.stored.dtype)
    )
