"""Regression of counts, with a likelihood of your own: write down log p(t | r), and the metric follows.

The counts spread more than a Poisson's would; the negative binomial has a variance μ + μ²/k. Its Fisher information
at the outputs (r = log μ) comes by differentiating the KL divergence twice, so only two formulas are written here.

    python examples/counts.py
"""

from functools import partial

import jax
import jax.numpy as jnp

import natgrad as ng

SPREAD = 2.0
"""k of the negative binomial: the smaller, the wider."""


def log_prob(outputs, counts):
    """Return k log k/(k + μ) + t log μ/(k + μ), without the terms that no parameter moves."""
    log_total = jnp.logaddexp(outputs, jnp.log(SPREAD))
    return jnp.sum(counts * outputs - (counts + SPREAD) * log_total, axis=-1)


def kl(outputs, new_outputs):
    """Return E[log p(t | r) − log p(t | r′)]: log_prob is linear in t, so put the mean in its place."""
    mean = jnp.exp(outputs)
    return log_prob(outputs, mean) - log_prob(new_outputs, mean)


negative_binomial = ng.Likelihood.from_log_prob(log_prob, kl=kl, mean=jnp.exp)


TRUTH = {"w": jnp.array([[1.0], [-0.5]]), "b": jnp.array([1.0])}


def model(params, x):
    """Return log-means."""
    return x @ params["w"] + params["b"]


def data(key, count):
    """Return inputs and counts of the true log-means, spread by a gamma-distributed factor."""
    k1, k2, k3 = jax.random.split(key, 3)
    x = jax.random.normal(k1, (count, 2))
    rate = jnp.exp(model(TRUTH, x)) * jax.random.gamma(k2, SPREAD, (count, 1)) / SPREAD
    return x, jax.random.poisson(k3, rate).astype(x.dtype)


def fit(likelihood, batch, steps):
    """Return the parameters after a few steps from 0."""
    opt = ng.natural_gradient(model, likelihood, reject=0.0)  # never a step that raises the loss

    def step(carry, _):
        params, state, _ = opt.step(*carry, batch)
        return (params, state), None

    start = jax.tree.map(jnp.zeros_like, TRUTH)
    return jax.lax.scan(step, (start, opt.init(start)), None, steps)[0][0]


def main(repeats=200, count=200, steps=15):
    """Fit both likelihoods to many data sets; return the typical error of each one's coefficients."""
    batches = jax.vmap(lambda key: data(key, count))(jax.random.split(jax.random.key(0), repeats))
    errors = {}
    for name, likelihood in {"negative binomial": negative_binomial, "Poisson": ng.Poisson()}.items():
        fits = jax.jit(jax.vmap(partial(fit, likelihood, steps=steps)))(batches)
        gaps = jax.tree.leaves(jax.tree.map(lambda found, true: found - true, fits, TRUTH))
        errors[name] = float(jnp.sqrt(sum(jnp.mean(gap**2) for gap in gaps)))
        print(f"{name:18s} error of the coefficients {errors[name]:.3f}")
    return errors


if __name__ == "__main__":
    main()
