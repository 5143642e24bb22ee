"""The QLP factorization of the Lanczos matrix, one column at a time (Choi, Paige & Saunders 2011, section 5).

Left reflections Q_k T_k = [R_k; 0] make T_k triangular and give ‖r_k‖: that is MINRES. Right reflections R_k P_k = L_k
make the triangle lower. Then x_k = W_k μ_k with ‖x_k‖ = ‖μ_k‖, so the last μ shows whether x grows too long.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

Rotation = tuple[Array, Array]
"""The (c, s) of a reflection."""


def reflect(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Return (c, s, d) with ca + sb = d = ‖(a, b)‖ and sa − cb = 0, without overflow (SymOrtho)."""
    larger = jnp.maximum(jnp.abs(a), jnp.abs(b))
    unit = jnp.where(larger > 0, larger, 1)
    a, b = a / unit, b / unit
    d = jnp.sqrt(a * a + b * b)
    empty = larger == 0
    safe = jnp.where(empty, 1, d)
    return jnp.where(empty, 1, a / safe), b / safe, d * unit


class Left(NamedTuple):
    """What the left reflections carry from column to column."""

    c: Array
    s: Array
    delta_bar: Array
    """The entry above the diagonal, waiting for the next reflection."""
    epsilon: Array
    """The second superdiagonal of R_k."""
    phi: Array
    """‖r_k‖ (in the norm of M⁻¹)."""


class Column(NamedTuple):
    """Column k of R_k, τ_k = c_k φ_{k−1}, and ‖A r_{k−1}‖/‖r_{k−1}‖."""

    epsilon: Array
    delta: Array
    gamma: Array
    tau: Array
    normal: Array


def left_start(beta: Array) -> Left:
    """Before the first column: φ_0 = β_1."""
    zero = jnp.zeros_like(beta)
    return Left(-jnp.ones_like(beta), zero, zero, zero, beta)


def left_step(left: Left, alpha: Array, next_beta: Array) -> tuple[Left, Column]:
    """Apply the previous left reflection to the new column of T_k, then choose the next one."""
    c, s, delta_bar, epsilon, phi = left
    delta = c * delta_bar + s * alpha
    gamma_bar = s * delta_bar - c * alpha
    next_epsilon, next_delta_bar = s * next_beta, -c * next_beta
    c, s, gamma = reflect(gamma_bar, next_beta)
    # ‖A r_{k−1}‖ = ‖r_{k−1}‖ ‖(γ̄_k, δ̄_{k+1})‖ (Choi, Paige & Saunders 2011, section 3.3).
    normal = jnp.hypot(gamma_bar, next_delta_bar)
    return (
        Left(c, s, next_delta_bar, next_epsilon, s * phi),
        Column(epsilon, delta, gamma, c * phi, normal),
    )


class Right(NamedTuple):
    """What the right reflections carry: L's last entries and the solution μ of Lμ = τ as far as it is fixed.

    A suffix tells how far back an entry lies at the end of step k: gamma_1 is γ_{k−1}.
    """

    outer: Rotation
    """(c, s) of P_{k−1,k+1}, waiting for the next column."""
    gamma: Array
    gamma_1: Array
    theta: Array
    theta_1: Array
    eta: Array
    eta_1: Array
    tau: Array
    tau_1: Array
    mu: Array
    mu_1: Array
    mu_2: Array
    mu_3: Array
    chi: Array
    """‖(μ_1 … μ_{k−2})‖."""


def right_start(beta: Array) -> Right:
    """No columns yet: everything 0, reflections that change nothing."""
    zero = jnp.zeros_like(beta)
    return Right((-jnp.ones_like(beta), zero), *(zero,) * 13)


def right_step(
    right: Right, column: Column, next_epsilon: Array, first: Array
) -> tuple[Right, Rotation, Rotation]:
    """Reflect column k from the right and solve for its μ; return also the (c, s) of P_{k−2,k} and P_{k−1,k}.

    `first` marks k = 1, where there is nothing to the left to reflect with.
    """
    c2, s2 = right.outer
    theta_1 = c2 * right.theta + s2 * column.delta
    delta = s2 * right.theta - c2 * column.delta
    eta, gamma = s2 * column.gamma, -c2 * column.gamma

    c1, s1, gamma_1 = _unless(first, reflect(right.gamma, delta), right.gamma)
    theta, gamma = s1 * gamma, -c1 * gamma

    mu_2 = _divide(right.tau_1 - right.eta_1 * right.mu_3 - right.theta_1 * right.mu_2, right.gamma_1)
    mu_1 = _divide(right.tau - right.eta * right.mu_2 - theta_1 * mu_2, gamma_1)
    mu = _divide(column.tau - eta * mu_2 - theta * mu_1, gamma)

    outer_c, outer_s, reflected = _unless(first, reflect(gamma_1, next_epsilon), gamma_1)
    return (
        Right(
            outer=(outer_c, outer_s),
            gamma=gamma,
            gamma_1=reflected,
            theta=theta,
            theta_1=theta_1,
            eta=eta,
            eta_1=right.eta,
            tau=column.tau,
            tau_1=right.tau,
            mu=mu,
            mu_1=mu_1,
            mu_2=mu_2,
            mu_3=right.mu_2,
            chi=jnp.hypot(right.chi, mu_2),
        ),
        (c2, s2),
        (c1, s1),
    )


def _unless(first: Array, found: tuple[Array, Array, Array], d: Array) -> tuple[Array, Array, Array]:
    c, s, length = found
    return jnp.where(first, -1, c), jnp.where(first, 0, s), jnp.where(first, d, length)


def _divide(a: Array, b: Array) -> Array:
    tiny = jnp.finfo(b.dtype).tiny
    return jnp.where(jnp.abs(b) > tiny, a / jnp.where(b == 0, 1, b), 0)
