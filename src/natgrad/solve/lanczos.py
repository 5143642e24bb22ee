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


def start(b: Tree, precondition: Operator | None) -> Lanczos:
    """Begin at v_1 = M⁻¹b/β_1."""
    z = b if precondition is None else precondition(b)
    beta = jnp.sqrt(tree.vdot(b, z))
    return Lanczos(tree.zeros_like(b), b, z, jnp.ones_like(beta), beta)


def step(product: Operator, precondition: Operator | None, state: Lanczos) -> tuple[Tree, Array, Lanczos]:
    """Return v_k, α_k and the next state: one product, in the inner product of M⁻¹."""
    older, newer, z, older_beta, beta = state
    # An exhausted space (β_k = 0) has no next vector; 0 keeps the numbers finite.
    v = tree.scale(jnp.where(beta == 0, 0, 1 / beta), z)
    u = tree.axpy(-beta / older_beta, older, product(v))
    alpha = tree.vdot(v, u)
    u = tree.axpy(jnp.where(beta == 0, 0, -alpha / beta), newer, u)
    z = u if precondition is None else precondition(u)
    return v, alpha, Lanczos(newer, u, z, jnp.where(beta == 0, 1, beta), jnp.sqrt(tree.vdot(u, z)))


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
