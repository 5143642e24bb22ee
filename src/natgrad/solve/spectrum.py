"""What a few Lanczos steps tell of a symmetric operator: its extreme eigenvalues, its density, its trace."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.solve.lanczos import tridiagonal
from natgrad.solve.problem import Operator
from natgrad.tree import Tree


class Density(NamedTuple):
    """A discrete spectral density: Σ weights·δ(eigenvalue), weights summing to 1."""

    eigenvalues: Array
    weights: Array


def extreme_eigenvalues(matvec: Operator, like: Tree, key: Array, steps: int = 30) -> tuple[Array, Array]:
    """Return estimates, from inside, of the least and the largest eigenvalue of a symmetric operator.

    `like` is any vector of its space. The ends of the spectrum converge first; 30 steps give two digits or
    more on most spectra.
    """
    ritz, weights = _quadrature(matvec, _signs(key, like), steps)
    valid = weights > 0
    return (
        jnp.min(jnp.where(valid, ritz, jnp.inf)),
        jnp.max(jnp.where(valid, ritz, -jnp.inf)),
    )


def spectral_density(matvec: Operator, like: Tree, key: Array, steps: int = 30, probes: int = 8) -> Density:
    """Return (1/n) Σ δ(λ − λᵢ) as seen by stochastic Lanczos quadrature (Ubaru, Chen & Saad 2017).

    Every polynomial of degree < 2·steps in A has the right trace in expectation.
    """
    rules = jax.lax.map(
        lambda one: _quadrature(matvec, _signs(one, like), steps), jax.random.split(key, probes)
    )
    return Density(rules[0].ravel(), rules[1].ravel() / probes)


def trace(matvec: Operator, like: Tree, key: Array, probes: int = 32) -> Array:
    """Return the estimate mean(eᵀAe) of tr A, e random signs (Hutchinson 1990): unbiased, `probes` products."""

    def one(key: Array) -> Array:
        e = _signs(key, like)
        return tree.vdot(e, matvec(e))

    return jnp.mean(jax.lax.map(one, jax.random.split(key, probes)))


def _quadrature(matvec: Operator, v: Tree, steps: int) -> tuple[Array, Array]:
    """Gauss quadrature of the spectral measure of v: eigenvalues of T, squared first entries of eigenvectors."""
    unknowns = sum(leaf.size for leaf in jax.tree.leaves(v))
    alpha, beta = tridiagonal(matvec, v, min(steps, unknowns))
    T = jnp.diag(alpha) + jnp.diag(beta, 1) + jnp.diag(beta, -1)
    eigenvalues, vectors = jnp.linalg.eigh(T)
    # Rows past an exhausted space are decoupled zeros, which the first entries do not see.
    weights = vectors[0] ** 2
    return eigenvalues, jnp.where(weights > jnp.finfo(weights.dtype).eps ** 2, weights, 0)


def _signs(key: Array, like: Tree) -> Tree:
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    signs = [jax.random.rademacher(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, signs)
