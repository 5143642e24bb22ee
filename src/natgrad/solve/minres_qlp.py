"""MINRES and MINRES-QLP, for symmetric systems: indefinite, singular and inconsistent ones included.

An iteration is a Lanczos step (one product with A), a column of the factorization (`reflections`), and a move of
three vectors. After the loop the residual is recomputed from x, and only it may claim success.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.solve.problem import AIM, RUNNING, Iterative, meets, residual, verdict
from natgrad.solve.reflections import (
    Column,
    Left,
    Right,
    Rotation,
    left_start,
    left_step,
    right_start,
    right_step,
)
from natgrad.solve.result import LinearMap, Reason, Solution
from natgrad.tree import Tree

SINGULAR = (Reason.LEAST_SQUARES, Reason.X_TOO_LARGE, Reason.ILL_CONDITIONED)
"""If a loop ends for one of these reasons, A is singular or nearly so, and x's last component lies along the singular
direction."""
MAX_CONDITION = 1e15
"""Bound on the estimate of cond(A) (`Acondlim`); 0.1/eps of the dtype, if that is less."""


@dataclass(frozen=True)
class _Minres(Iterative):
    """The settings of both methods. From x0 they solve for x − x0, which then has the minimum length."""

    maxiter: int = 20
    """Most iterations."""
    rtol: float = 1e-5
    """Relative tolerance of both tests; 0 switches them off: only `maxiter` or a bound then ends the loop."""
    maxxnorm: float | None = None
    """The bound on ‖x‖; with a preconditioner M, on ‖M^½x‖. It decides the rank: a component that would make x longer
    than this is left out. None takes 10⁵‖b‖/‖A‖ in float64 and 10³‖b‖/‖A‖ in float32, where ‖b‖ is rounded to a power
    of two. It then applies only if the problem looks like least squares, so ill-conditioned systems can still be
    solved."""
    reorthogonalize: int = 0
    """Make each Lanczos vector orthogonal to this many before it, which are kept in memory. Ill-conditioned
    indefinite systems then need about n iterations instead of many times n."""

    def run(self, product: LinearMap, b: Tree, x0: Tree | None, preconditioner: LinearMap | None) -> Solution:
        """Solve A x = b for a given product."""
        return _refine(self, product, b, x0, preconditioner)


@dataclass(frozen=True)
class MinresQLP(_Minres):
    """MINRES-QLP (Choi, Paige & Saunders 2011): x = A⁺b, the shortest minimizer of ‖b − Ax‖, A symmetric.

    Stops when ‖b − Ax‖ ≤ rtol ‖b‖ (solved) or ‖Ar‖ ≤ rtol ‖A‖‖r‖ (least squares). On a least-squares stop and at
    a bound, x leaves out its last component, which lies along the nearly singular direction. The official code
    keeps it on a least-squares stop; x is then a minimizer, but far from the shortest one. For A⁺b to six digits
    use rtol ≤ 1e-8.
    """


@dataclass(frozen=True)
class MINRES(_Minres):
    """MINRES (Paige & Saunders 1975): x_k minimizes ‖b − Ax‖ over growing Krylov spaces, A symmetric.

    It shares the recurrence, the tests and the cost of `MinresQLP`, and moves other vectors. On singular consistent
    systems it finds the shortest solution too. On inconsistent ones it finds some minimizer: take `MinresQLP` there.
    """


# The referee: recompute the residual, start again where the recurrence was wrong, and name the end.


class _Progress(NamedTuple):
    x: Tree
    r: Tree
    residual: Array
    normal: Array
    """‖Ar‖, or its estimate."""
    norm: Array
    """A lower estimate of ‖A‖ itself, whatever the preconditioner; claims about A are judged by it."""
    iterations: Array
    reason: Array
    again: Array


def _refine(
    solver: _Minres, product: LinearMap, b: Tree, x0: Tree | None, preconditioner: LinearMap | None
) -> Solution:
    """Solve A dx = b − Ax until the residual, recomputed from x, is what the recurrence said."""
    b_norm = tree.norm(b)
    rtol = jnp.asarray(solver.rtol, b_norm.dtype)
    target = rtol * b_norm
    r = residual(product, b, x0)
    r_norm = tree.norm(r)
    x = tree.zeros_like(b) if x0 is None else x0

    def attempt(so_far: _Progress) -> _Progress:
        unit = tree.power_of_two(tree.norm(so_far.r))
        reduction = target / jnp.where(so_far.residual > 0, so_far.residual, 1)
        rules = rules_for(solver, unit, reduction, solver.maxiter - so_far.iterations)
        found = krylov(rules, product, preconditioner, tree.scale(1 / unit, so_far.r))
        x = tree.add(so_far.x, tree.scale(unit, solution_of(rules, found)))
        r = residual(product, b, x)
        r_norm = tree.norm(r)
        met = meets(r_norm, target)
        norm = jnp.maximum(so_far.norm, own_norm(found))
        # A limit may have stopped a least-squares problem that was already solved: one more product tells.
        asked = ~met & (found.reason != RUNNING)
        estimate = unit * found.scalars.normal
        normal = jax.lax.cond(asked, lambda r: tree.norm(product(r)), lambda r: estimate, r)
        least_squares = asked & (normal <= rtol * norm * r_norm) & (rtol > 0)

        # The first answer counts, whatever it is; a second one only if it is better.
        first = so_far.iterations == 0
        shorter = jnp.where(asked, normal, r_norm) < jnp.where(asked, so_far.normal, so_far.residual) / 2
        better = first | met | least_squares | shorter
        iterations = so_far.iterations + found.iteration
        claimed = _among(found.reason, (Reason.SOLVED, Reason.LEAST_SQUARES))
        reason = jnp.where(found.reason == RUNNING, Reason.MAXITER, found.reason)
        reason = jnp.where(claimed, Reason.STALLED, reason)
        # A denied answer at a bound is worth another attempt as well.
        denied = (claimed | _among(found.reason, SINGULAR)) & ~met & ~least_squares
        # This is a branch, so that nothing is computed again for each element.
        kept_x, kept_r = jax.lax.cond(better, lambda: (x, r), lambda: (so_far.x, so_far.r))
        return _Progress(
            x=kept_x,
            r=kept_r,
            residual=jnp.where(better, r_norm, so_far.residual),
            normal=jnp.where(better, normal, so_far.normal),
            norm=norm,
            iterations=iterations,
            reason=jnp.where(least_squares, Reason.LEAST_SQUARES, reason).astype(jnp.int32),
            again=denied & better & (iterations < solver.maxiter),
        )

    ready = jnp.where(meets(r_norm, target), Reason.SOLVED, RUNNING).astype(jnp.int32)
    start = _Progress(
        x=x,
        r=r,
        residual=r_norm,
        normal=jnp.full_like(b_norm, jnp.inf),
        norm=jnp.zeros_like(b_norm),
        iterations=jnp.array(0, jnp.int32),
        reason=ready,
        again=ready == RUNNING,
    )
    end = jax.lax.while_loop(lambda s: s.again, attempt, start)

    x = tree.where(b_norm == 0, tree.zeros_like(b), end.x)
    finite = tree.is_finite(x, end.residual, b_norm) & (end.reason != Reason.NONFINITE)
    return Solution(
        x=tree.where(tree.is_finite(x), x, tree.zeros_like(x)),
        iterations=end.iterations,
        residual=jnp.where(b_norm == 0, b_norm, end.residual),
        normal_residual=jnp.where(b_norm == 0, b_norm, end.normal),
        reason=verdict(end.reason, meets(end.residual, target), b_norm, finite),
    )


def _among(reason: Array, reasons: tuple[Reason, ...]) -> Array:
    return jnp.isin(reason, jnp.array(reasons, reason.dtype))


# One attempt: the loop, for a right-hand side of length about 1.


class Rules(NamedTuple):
    """When to stop."""

    qlp: bool
    """Whether the vectors are those of MINRES-QLP or of MINRES."""
    reorthogonalize: int
    absolute_length: bool
    """Whether the bound is on ‖x‖ itself, always, or on ‖A‖‖x‖/‖b‖, when the problem looks like least squares."""
    max_length: Array
    rtol: Array
    reduction: Array
    """The factor by which ‖r‖ must fall."""
    budget: Array
    """Most iterations."""


def rules_for(solver: _Minres, unit: Array, reduction: Array, budget: Array | int) -> Rules:
    """Translate a solver's fields for one attempt, whose right-hand side was divided by `unit`."""
    precision = jnp.finfo(unit.dtype)
    max_length = jnp.asarray(1e5 if precision.bits == 64 else 1e3, unit.dtype)
    if solver.maxxnorm is not None:
        max_length = jnp.asarray(solver.maxxnorm, unit.dtype) / unit
    rtol = jnp.asarray(solver.rtol, unit.dtype)
    return Rules(
        qlp=isinstance(solver, MinresQLP),
        reorthogonalize=solver.reorthogonalize,
        absolute_length=solver.maxxnorm is not None,
        max_length=max_length,
        rtol=jnp.where(rtol > 0, jnp.maximum(rtol, precision.eps), 0),
        reduction=AIM * reduction,
        budget=jnp.asarray(budget, jnp.int32),
    )


class Scalars(NamedTuple):
    """What is known after k columns."""

    left: Left
    right: Right
    norm: Array
    """A lower estimate of ‖A‖, with a preconditioner M of ‖M^−½AM^−½‖."""
    least: Array
    least_1: Array
    """The least |γ| so far, and one step before."""
    relative_residual: Array
    """‖r_k‖ / (‖A‖‖x_k‖ + ‖b‖)."""
    relative_normal: Array
    """‖A r_{k−1}‖ / (‖A‖‖r_{k−1}‖): known one step late."""
    normal: Array
    """‖A r_{k−1}‖."""


class Loop(NamedTuple):
    """Where the loop stands after k iterations."""

    iteration: Array
    lanczos: "Lanczos"
    scalars: Scalars
    vectors: "Vectors"
    reason: Array


def krylov(rules: Rules, product: LinearMap, preconditioner: LinearMap | None, b: Tree) -> Loop:
    """Iterate on A x = b from zero until the goal, a limit or a breakdown."""
    start = lanczos_start(b, preconditioner, rules.reorthogonalize)
    beta, zeros = start.beta, tree.zeros_like(b)
    zero, one = jnp.zeros_like(beta), jnp.ones_like(beta)
    scalars = Scalars(left_start(beta), right_start(beta), zero, zero, zero, one, one, zero)
    reason = _unless_broken(start, jnp.array(RUNNING))
    state = Loop(jnp.array(0, jnp.int32), start, scalars, Vectors(zeros, zeros, zeros), reason)
    return jax.lax.while_loop(
        lambda s: (s.reason == RUNNING) & (s.iteration < rules.budget),
        lambda s: _step(rules, product, preconditioner, beta, s),
        state,
    )


def solution_of(rules: Rules, state: Loop) -> Tree:
    """Return x_k; at a singular direction MINRES-QLP leaves out the last component."""
    right, (older, newer, total) = state.scalars.right, state.vectors
    if not rules.qlp:
        return total
    last = jnp.where(_among(state.reason, SINGULAR), 0, right.mu)
    return tree.axpy(last, newer, tree.axpy(right.mu_1, older, total))


def own_norm(state: Loop) -> Array:
    """Return a lower estimate of ‖A‖ itself."""
    stretch = state.lanczos.stretch
    return state.scalars.norm if stretch is None else stretch


def _step(
    rules: Rules, product: LinearMap, preconditioner: LinearMap | None, beta_1: Array, state: Loop
) -> Loop:
    first, beta = state.iteration == 0, state.lanczos.beta
    v, alpha, ahead = lanczos_step(product, preconditioner, state.lanczos)

    def take() -> tuple[Scalars, Array, Array]:
        return _advance(rules, state.scalars, first, beta_1, beta, alpha, ahead.beta)

    def leave() -> tuple[Scalars, Array, Array]:
        return state.scalars, _stay(alpha.dtype), jnp.array(RUNNING, jnp.int32)

    # An exhausted space (β_k = 0) and a step that is not finite leave everything as it was. This is a branch, not a
    # where: its results are stored, while a where would be computed again for each element.
    scalars, moves, reason = jax.lax.cond((beta > 0) & jnp.isfinite(ahead.beta), take, leave)
    vectors = _move(moves, v, state.vectors)
    following = lanczos_proceed(ahead, vectors.newer)
    return Loop(state.iteration + 1, following, scalars, vectors, _unless_broken(following, reason))


def _unless_broken(lanczos: "Lanczos", reason: Array) -> Array:
    """Return the reason, unless a NaN or a preconditioner that is not positive definite broke the recurrence."""
    reason = jnp.where(lanczos.squared < 0, Reason.INDEFINITE, reason)
    return jnp.where(jnp.isfinite(lanczos.squared), reason, Reason.NONFINITE).astype(jnp.int32)


def _advance(
    rules: Rules, old: Scalars, first: Array, beta_1: Array, beta: Array, alpha: Array, next_beta: Array
) -> tuple[Scalars, Array, Array]:
    """Take in column k of the Lanczos matrix; return the scalars, the map of the vectors and the reason."""
    left, column = left_step(old.left, alpha, next_beta)
    right, outer, inner = right_step(old.right, column, left.epsilon, first)

    width = jnp.sqrt(jnp.where(first, 0, beta) ** 2 + alpha**2 + next_beta**2)
    gamma = jnp.abs(right.gamma)
    norm = jnp.maximum(jnp.maximum(old.norm, width), jnp.maximum(right.gamma_1, gamma))
    least = jnp.where(first, gamma, jnp.minimum(jnp.minimum(old.least_1, right.gamma_1), gamma))
    tiny, eps = jnp.finfo(norm.dtype).tiny, jnp.finfo(norm.dtype).eps
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

    max_condition = min(0.1 / float(eps), MAX_CONDITION)
    reason = jnp.where(singular | (condition >= max_condition), Reason.ILL_CONDITIONED, RUNNING)
    reason = jnp.where(overlong, Reason.X_TOO_LARGE, reason)
    tested = rules.rtol > 0
    reason = jnp.where(tested & (norm * length * eps >= beta_1), Reason.STALLED, reason)
    reason = jnp.where(tested & (relative_normal <= rules.rtol), Reason.LEAST_SQUARES, reason)
    met = (left.phi <= rules.reduction * beta_1) | (relative_residual <= eps)
    reason = jnp.where(tested & met, Reason.SOLVED, reason)

    moves = _qlp_map(right, outer, inner) if rules.qlp else _minres_map(column, cut)
    new = Scalars(
        left=left,
        right=right,
        norm=norm,
        least=least,
        least_1=jnp.where(first, least, old.least),
        relative_residual=relative_residual,
        relative_normal=relative_normal,
        normal=old.left.phi * column.normal,
    )
    return (
        tree.where(too_late, old, new),
        jnp.where(too_late, _stay(moves.dtype), moves),
        jnp.where(too_late, Reason.X_TOO_LARGE, reason).astype(jnp.int32),
    )


# The vectors. Either method keeps two vectors and a sum, and moves them by a linear map of (older, newer, v_k) whose
# coefficients come from the reflections: one fused pass over memory serves both.


class Vectors(NamedTuple):
    """QLP: (w_{k−1}, w_k, Σ_{j≤k−2} μ_j w_j). MINRES: (d_{k−1}, d_k, x_k)."""

    older: Tree
    newer: Tree
    sum: Tree


def _minres_map(column: Column, cut: Array) -> Array:
    """d_k = (v_k − ε_k d_{k−2} − δ_k d_{k−1})/γ_k; x_k = x_{k−1} + τ_k d_k unless the component is cut."""
    gamma = jnp.where(column.gamma > 0, column.gamma, 1)
    d = jnp.stack([-column.epsilon / gamma, -column.delta / gamma, 1 / gamma])
    return jnp.stack([jnp.array([0, 1, 0], d.dtype), d, jnp.where(cut, 0, column.tau) * d])


def _qlp_map(right: Right, outer: Rotation, inner: Rotation) -> Array:
    """P_{k−2,k} makes w_{k−2} and h of (w_{k−2}, v_k); P_{k−1,k} makes w_{k−1} and w_k of (w_{k−1}, h)."""
    (c2, s2), (c1, s1) = outer, inner
    rows = (
        [s1 * s2, c1, -s1 * c2],
        [-c1 * s2, s1, c1 * c2],
        [right.mu_2 * c2, jnp.zeros_like(c2), right.mu_2 * s2],
    )
    return jnp.stack([jnp.stack(row) for row in rows])


def _stay(dtype: Any) -> Array:
    """Return the map that moves nothing."""
    return jnp.diag(jnp.array([1, 1, 0], dtype))


def _move(moves: Array, v: Tree, vectors: Vectors) -> Vectors:
    """Apply a map, whose last row is the change of the sum. Each vector is overwritten after its last read."""

    def one(v: Array, older: Array, newer: Array, total: Array) -> tuple[Array, Array, Array]:
        (a, b, c), (d, e, f), (g, h, i) = moves.astype(v.dtype)
        total = total + g * older + h * newer + i * v
        part = d * older + f * v
        older = tree.after(a, total, part) * older + b * newer + c * v
        newer = tree.after(e, older) * newer + part
        return older, newer, total

    leaves, structure = jax.tree.flatten(v)
    moved = zip(*map(one, leaves, *map(jax.tree.leaves, vectors)), strict=True)
    return Vectors(*(jax.tree.unflatten(structure, part) for part in moved))


# The Lanczos recurrence: A v_k = β_{k+1} q_{k+1} + α_k q_k + β_k q_{k−1}, q = M v.


class Earlier(NamedTuple):
    """The latest pairs (v_j, q_j), each kind stacked in a ring."""

    v: Tree
    q: Tree
    seen: Array


class Lanczos(NamedTuple):
    """Where the recurrence stands before step k.

    `lanczos_step` returns its vectors unscaled, because others may still read q_k: q_k itself, β_{k+1} q_{k+1},
    β_{k+1} v_{k+1}. `lanczos_proceed` scales them.
    """

    pull: Tree
    """β_k q_{k−1}. It is stored scaled: the compiled loop copies a vector that is merely passed on."""
    newer: Tree
    """q_k."""
    preconditioned: Tree | None
    """v_k = M⁻¹q_k; None without a preconditioner, so that no vector is carried twice."""
    beta: Array
    """β_k, the length of what q_k was made of."""
    squared: Array
    """β_k²: negative if M is not positive definite, NaN after a NaN in A or M."""
    memory: Earlier | None
    """Earlier vectors, when orthogonality is enforced."""
    stretch: Array | None
    """The largest ‖Av_j‖/‖v_j‖: a lower estimate of ‖A‖, where T's is one of M^−½AM^−½; None without M."""


def lanczos_start(b: Tree, preconditioner: LinearMap | None, remember: int) -> Lanczos:
    """Begin at v_1 = M⁻¹b/β_1; keep the latest `remember` vectors to make each new one orthogonal to them."""
    memory = None
    if remember:
        ring = jax.tree.map(lambda leaf: jnp.zeros((remember, *leaf.shape), leaf.dtype), b)
        memory = Earlier(ring, ring, jnp.array(0, jnp.int32))
    stretch = None if preconditioner is None else jnp.zeros((), tree.dtype(b))
    return lanczos_proceed(_measured(preconditioner, tree.zeros_like(b), b, memory, stretch), b)


def lanczos_step(
    product: LinearMap, preconditioner: LinearMap | None, state: Lanczos
) -> tuple[Tree, Array, Lanczos]:
    """Return v_k, α_k and the next state, unscaled: one product, in the inner product of M⁻¹."""
    pull, q, v, _, _, memory, stretch = state
    v = q if v is None else v
    image = product(v)
    if stretch is not None:
        more = tree.length(image) / tree.length(v)
        stretch = jnp.where(jnp.isfinite(more), jnp.maximum(stretch, more), stretch)
    u = tree.sub(image, pull)
    alpha = tree.vdot(v, u)
    u = tree.axpy(-alpha, q, u)
    if memory is not None:
        memory = _remember(memory, v, q)
        # u − Σ_j (v_jᵀu) q_j: rounding makes Lanczos vectors forget each other (Paige 1971).
        u = tree.sub(u, tree.combine(tree.onto(tree.Stack(memory.v), u), tree.Stack(memory.q)))
    return v, alpha, _measured(preconditioner, q, u, memory, stretch)


def _measured(
    preconditioner: LinearMap | None, q: Tree, r: Tree, memory: Earlier | None, stretch: Array | None
) -> Lanczos:
    """Measure β = √(rᵀM⁻¹r)."""
    z = None if preconditioner is None else preconditioner(r)
    squared = tree.vdot(r, r if z is None else z)
    return Lanczos(q, r, z, jnp.sqrt(squared), squared, memory, stretch)


def lanczos_proceed(ahead: Lanczos, earlier: Tree) -> Lanczos:
    """Scale the vectors of the next state once `earlier`, which may still read q_k, is computed."""
    q, r, z, beta, *_ = ahead
    # An exhausted space (β = 0) has no next vector; 0 keeps the numbers finite.
    inverse = jnp.where(beta == 0, 0, 1 / beta)

    def times(factor: Array, vector: Tree, earlier: Tree) -> Tree:
        return jax.tree.map(lambda v, first: tree.after(factor.astype(v.dtype), first) * v, vector, earlier)

    pull = times(beta, q, earlier)
    newer = times(inverse, r, pull)
    return ahead._replace(
        pull=pull, newer=newer, preconditioned=None if z is None else times(inverse, z, earlier)
    )


def _remember(memory: Earlier, v: Tree, q: Tree) -> Earlier:
    def put(ring: Array, leaf: Array) -> Array:
        return ring.at[memory.seen % ring.shape[0]].set(leaf)

    return Earlier(jax.tree.map(put, memory.v, v), jax.tree.map(put, memory.q, q), memory.seen + 1)
