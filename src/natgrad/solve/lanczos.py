"""The Lanczos recurrence: A v_k = β_{k+1} q_{k+1} + α_k q_k + β_k q_{k−1}, q = M v."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.solve.problem import Operator
from natgrad.tree import Tree


class Lanczos(NamedTuple):
    """Where the recurrence stands before step k."""

    pull: Tree
    """β_k q_{k−1}: scaled already, for a vector that is merely passed on costs the compiled loop two copies."""
    newer: Tree
    """q_k."""
    preconditioned: Tree | None
    """v_k = M⁻¹q_k; None without a preconditioner, so that no vector is carried twice."""
    beta: Array
    """β_k, the length of what q_k was made of."""
    squared: Array
    """β_k²: negative if M is not positive definite, NaN after a NaN in A or M."""
    memory: "Memory | None"
    """Earlier vectors, when orthogonality is enforced."""
    stretch: Array | None
    """The largest ‖Av_j‖/‖v_j‖: what is known of ‖A‖ where the recurrence is that of M^−½AM^−½; None without M."""


class Memory(NamedTuple):
    """The latest pairs (v_j, q_j), each kind stacked in a ring."""

    v: Tree
    q: Tree
    seen: Array


class Ahead(NamedTuple):
    """What the step has found of the next vector, which is not written yet: others may still read q_k."""

    q: Tree
    """q_k."""
    r: Tree
    """β_{k+1} q_{k+1}."""
    z: Tree | None
    """M⁻¹r; None without a preconditioner."""
    beta: Array
    squared: Array
    memory: "Memory | None"
    stretch: Array | None


def start(b: Tree, precondition: Operator | None, remember: int = 0) -> Lanczos:
    """Begin at v_1 = M⁻¹b/β_1; keep the latest `remember` vectors to make each new one orthogonal to them."""
    memory = None
    if remember:
        ring = jax.tree.map(lambda leaf: jnp.zeros((remember, *leaf.shape), leaf.dtype), b)
        memory = Memory(ring, ring, jnp.array(0, jnp.int32))
    ahead = _measured(precondition, tree.zeros_like(b), b, memory)
    if precondition is not None:
        ahead = ahead._replace(stretch=jnp.zeros_like(ahead.beta))
    return proceed(ahead, b)


def step(product: Operator, precondition: Operator | None, state: Lanczos) -> tuple[Tree, Array, Ahead]:
    """Return v_k, α_k and what is ahead: one product, in the inner product of M⁻¹."""
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
        u = _orthogonalize(memory, u)
    return v, alpha, _measured(precondition, q, u, memory)._replace(stretch=stretch)


def _measured(precondition: Operator | None, q: Tree, r: Tree, memory: Memory | None) -> Ahead:
    """Measure β = √(rᵀM⁻¹r)."""
    z = None if precondition is None else precondition(r)
    squared = tree.vdot(r, r if z is None else z)
    return Ahead(q, r, z, jnp.sqrt(squared), squared, memory, None)


def proceed(ahead: Ahead, earlier: Tree) -> Lanczos:
    """Return the next state; its vectors are written when `earlier`, which may still read q_k, is there."""
    # An exhausted space (β = 0) has no next vector; 0 keeps the numbers finite.
    inverse = jnp.where(ahead.beta == 0, 0, 1 / ahead.beta)

    def times(factor: Array, vector: Tree, earlier: Tree) -> Tree:
        return jax.tree.map(lambda v, first: tree.after(factor.astype(v.dtype), first) * v, vector, earlier)

    pull = times(ahead.beta, ahead.q, earlier)
    newer = times(inverse, ahead.r, pull)
    v = None if ahead.z is None else times(inverse, ahead.z, earlier)
    return Lanczos(pull, newer, v, ahead.beta, ahead.squared, ahead.memory, ahead.stretch)


def _remember(memory: Memory, v: Tree, q: Tree) -> Memory:
    def put(ring: Array, leaf: Array) -> Array:
        return ring.at[memory.seen % ring.shape[0]].set(leaf)

    return Memory(jax.tree.map(put, memory.v, v), jax.tree.map(put, memory.q, q), memory.seen + 1)


def _orthogonalize(memory: Memory, u: Tree) -> Tree:
    """Return u − Σ_j (v_jᵀu) q_j: rounding makes Lanczos vectors forget each other (Paige 1971)."""
    overlaps = tree.inner(memory.v, tree.stack(u))[:, 0]
    return tree.sub(u, tree.combine(overlaps, memory.q))


def tridiagonal(matvec: Operator, v: Tree, steps: int) -> tuple[Array, Array]:
    """Return the diagonal α_1 … α_k and the off-diagonal β_2 … β_k of the Lanczos matrix T_k started at v.

    Zeros follow the end of an exhausted Krylov space.
    """

    def advance(state: Lanczos, _: None) -> tuple[Lanczos, tuple[Array, Array]]:
        v, alpha, ahead = step(matvec, None, state)
        following = proceed(ahead, v)
        # What is left of a vector that lay in the space already is rounding, not a direction.
        size = jnp.abs(alpha) + state.beta
        kept = (following.beta > 10 * jnp.finfo(alpha.dtype).eps * size).astype(alpha.dtype)
        following = following._replace(
            pull=tree.scale(kept, following.pull),
            newer=tree.scale(kept, following.newer),
            beta=kept * following.beta,
        )
        return following, (alpha, following.beta)

    unit = tree.scale(1 / tree.norm(v), v)
    _, (alpha, beta) = jax.lax.scan(advance, start(unit, None), None, length=steps)
    return alpha, beta[:-1]
