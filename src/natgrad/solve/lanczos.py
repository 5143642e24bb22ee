"""The Lanczos recurrence: A v_k = β_{k+1} v_{k+1} + α_k v_k + β_k v_{k−1}."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.solve.problem import Operator
from natgrad.tree import Tree


class Lanczos(NamedTuple):
    """The two latest residual vectors of the recurrence, r_j = β_{j+1} M v_{j+1}, and their lengths."""

    older: Tree
    """r_{k−2}."""
    newer: Tree
    """r_{k−1}."""
    direction: Tree
    """z = M⁻¹ r_{k−1}; the same tree when there is no preconditioner."""
    older_beta: Array
    """β_{k−1} (1 before there is one)."""
    beta: Array
    """β_k = √(r_{k−1}ᵀ M⁻¹ r_{k−1}); NaN if M is not positive definite."""
    memory: "Memory | None"
    """Earlier vectors, when orthogonality is enforced."""


class Memory(NamedTuple):
    """The latest pairs (v_j, M v_j), each kind stacked in a ring."""

    v: Tree
    Mv: Tree
    seen: Array


def start(b: Tree, precondition: Operator | None, remember: int = 0) -> Lanczos:
    """Begin at v_1 = M⁻¹b/β_1; keep the latest `remember` vectors to make each new one orthogonal to them."""
    z = b if precondition is None else precondition(b)
    beta = jnp.sqrt(tree.vdot(b, z))
    memory = None
    if remember:
        ring = jax.tree.map(lambda leaf: jnp.zeros((remember, *leaf.shape), leaf.dtype), b)
        memory = Memory(ring, ring, jnp.array(0, jnp.int32))
    return Lanczos(tree.zeros_like(b), b, z, jnp.ones_like(beta), beta, memory)


def step(product: Operator, precondition: Operator | None, state: Lanczos) -> tuple[Tree, Array, Lanczos]:
    """Return v_k, α_k and the next state: one product, in the inner product of M⁻¹."""
    older, newer, z, older_beta, beta, memory = state
    # An exhausted space (β_k = 0) has no next vector; 0 keeps the numbers finite.
    inverse = jnp.where(beta == 0, 0, 1 / beta)
    v = tree.scale(inverse, z)
    u = tree.axpy(-beta / older_beta, older, product(v))
    alpha = tree.vdot(v, u)
    u = tree.axpy(-alpha * inverse, newer, u)
    if memory is not None:
        memory = _remember(memory, v, tree.scale(inverse, newer))
        u = _orthogonalize(memory, u)
    z = u if precondition is None else precondition(u)
    next_beta = jnp.sqrt(tree.vdot(u, z))
    return v, alpha, Lanczos(newer, u, z, jnp.where(beta == 0, 1, beta), next_beta, memory)


def _remember(memory: Memory, v: Tree, Mv: Tree) -> Memory:
    def put(ring: Array, leaf: Array) -> Array:
        return ring.at[memory.seen % ring.shape[0]].set(leaf)

    return Memory(jax.tree.map(put, memory.v, v), jax.tree.map(put, memory.Mv, Mv), memory.seen + 1)


def _orthogonalize(memory: Memory, u: Tree) -> Tree:
    """Return u − Σ_j (v_jᵀu) M v_j: rounding makes Lanczos vectors forget each other (Paige 1971)."""
    parts = jax.tree.map(lambda ring, leaf: jnp.tensordot(ring, leaf, axes=leaf.ndim), memory.v, u)
    overlaps = jnp.sum(jnp.stack(jax.tree.leaves(parts)), axis=0)
    return tree.sub(u, tree.combine(overlaps, memory.Mv))


def tridiagonal(matvec: Operator, v: Tree, steps: int) -> tuple[Array, Array]:
    """Return the diagonal α_1 … α_k and the off-diagonal β_2 … β_k of the Lanczos matrix T_k started at v.

    Zeros follow the end of an exhausted Krylov space.
    """

    def advance(state: Lanczos, _: None) -> tuple[Lanczos, tuple[Array, Array]]:
        _, alpha, following = step(matvec, None, state)
        # What is left of a vector that lay in the space already is rounding, not a direction.
        size = jnp.abs(alpha) + state.beta
        spent = following.beta <= 10 * jnp.finfo(alpha.dtype).eps * size
        following = following._replace(beta=jnp.where(spent, 0, following.beta))
        return following, (alpha, following.beta)

    unit = tree.scale(1 / tree.norm(v), v)
    _, (alpha, beta) = jax.lax.scan(advance, start(unit, None), None, length=steps)
    return alpha, beta[:-1]
