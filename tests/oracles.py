"""The truth, dense and in float64, written from the definitions and sharing no code with the library."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree


def jacobians(model, params, inputs):
    """J_i = ∂r_i/∂θ for each example alone: (examples, outputs, parameters)."""
    flat, unravel = ravel_pytree(params)

    def one(p, x):
        outputs = model(unravel(p), jax.tree.map(lambda leaf: leaf[None], x))
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(outputs)])

    jacobian = jax.jit(jax.vmap(jax.jacrev(one), (None, 0)))
    return np.asarray(jacobian(flat, inputs))


def gaussian_matrix(r, scale=1.0):
    return np.eye(r.size) / scale**2


def bernoulli_matrix(r):
    y = 1 / (1 + np.exp(-r.ravel()))
    return np.diag(y * (1 - y))


def poisson_matrix(r):
    return np.diag(np.exp(r.ravel()))


def categorical_matrix(r):
    """diag(y) − y yᵀ for each position, on the diagonal of one matrix."""
    rows = r.reshape(-1, r.shape[-1])
    classes = rows.shape[1]
    M = np.zeros((r.size, r.size))
    for k, row in enumerate(rows):
        y = np.exp(row - row.max())
        y = y / y.sum()
        M[k * classes : (k + 1) * classes, k * classes : (k + 1) * classes] = np.diag(y) - np.outer(y, y)
    return M


def metric(J, M, weights=None):
    """F = Σ w_i J_iᵀ M_i J_i / Σ w."""
    c = np.ones(len(J)) if weights is None else np.asarray(weights)
    return np.einsum("i,iop,ioq,iqr->pr", c / c.sum(), J, np.stack(M), J)


def matrix(operator, params):
    """The dense matrix of a linear map from pytrees to pytrees, column by column."""
    flat, unravel = ravel_pytree(params)
    columns = jax.vmap(lambda v: ravel_pytree(operator(unravel(v)))[0])(jnp.eye(flat.size, dtype=flat.dtype))
    return columns.T


def log_prob(kind, r, t):
    """log p(t | r) of one example, normalized, for enumeration."""
    if kind == "gaussian":
        return jnp.sum(-((t - r) ** 2) / 2 - math.log(2 * math.pi) / 2)
    if kind == "bernoulli":
        return jnp.sum(t * jax.nn.log_sigmoid(r) + (1 - t) * jax.nn.log_sigmoid(-r))
    if kind == "poisson":
        return jnp.sum(t * r - jnp.exp(r) - jax.scipy.special.gammaln(t + 1))
    if kind == "categorical":
        return r[t] - jax.nn.logsumexp(r)
    raise ValueError(kind)


def enumerate_targets(kind, r):
    """All targets of one example and their probabilities: Σ p(t) f(t) is E[f], exactly or to rounding."""
    n = r.shape[0]
    if kind == "bernoulli":
        targets = np.array(list(itertools.product([0.0, 1.0], repeat=n)))
    elif kind == "categorical":
        targets = np.arange(n)
    elif kind == "poisson":
        targets = np.array(list(itertools.product(np.arange(40.0), repeat=n)))
    else:
        # Gauss–Hermite: exact for polynomials up to degree 9 in t − r.
        nodes, mass = np.polynomial.hermite_e.hermegauss(5)
        targets = np.array(list(itertools.product(nodes, repeat=n))) + np.asarray(r)
        weight = np.array(list(itertools.product(mass, repeat=n))).prod(axis=1)
        return jnp.asarray(targets), jnp.asarray(weight / weight.sum())
    targets = jnp.asarray(targets)
    return targets, _probabilities(kind, r, targets)


@partial(jax.jit, static_argnums=0)
def _probabilities(kind, r, targets):
    return jnp.exp(jax.vmap(lambda t: log_prob(kind, r, t))(targets))


def solve(F, g, shift):
    return np.linalg.solve(F + shift * np.eye(len(F)), g)


def primitives(jaxpr, looped=False, inside=False):
    """Yield the equations of a jaxpr and of all within it; with `looped`, those in the bodies of loops alone."""
    for equation in jaxpr.eqns:
        if inside or not looped:
            yield equation
        within = inside or equation.primitive.name in ("while", "scan")
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner, looped, within)
