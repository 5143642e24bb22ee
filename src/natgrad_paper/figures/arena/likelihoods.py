"""Two likelihoods of normal numbers with a scale of their own: outputs are means, then logarithms of scales."""

import math

import jax.numpy as jnp
from jax import Array

import natgrad as ng


def normal_mean_scale() -> ng.Likelihood:
    """Return independent normal targets, whose means and scales both are outputs."""

    def log_prob(outputs: Array, targets: Array) -> Array:
        mean, log_scale = jnp.split(outputs, 2, axis=-1)
        away = (targets - mean) * jnp.exp(-log_scale)
        return -jnp.sum(0.5 * away**2 + log_scale + 0.5 * math.log(2 * math.pi), axis=-1)

    return ng.Likelihood.from_log_prob(log_prob, kl=divergence)


def to_standard_normal() -> ng.Likelihood:
    """Return the term of an evidence bound: its nll is KL(N(mean, scale²) ‖ N(0, 1)), whatever the targets."""

    def log_prob(outputs: Array, targets: Array) -> Array:
        return -divergence(outputs, jnp.zeros_like(outputs))

    return ng.Likelihood.from_log_prob(log_prob, kl=divergence)


def divergence(outputs: Array, others: Array) -> Array:
    """Return the KL divergence of the normal numbers that two outputs describe, summed over numbers."""
    (mean, log_scale), (other, other_scale) = (jnp.split(each, 2, axis=-1) for each in (outputs, others))
    spread = (jnp.exp(2 * log_scale) + (mean - other) ** 2) * jnp.exp(-2 * other_scale)
    return jnp.sum(other_scale - log_scale + 0.5 * spread - 0.5, axis=-1)
