"""Regression of counts, with a likelihood of your own: write down log p(t | r), and the metric follows.

The counts spread more than a Poisson's would; the negative binomial has a variance μ + μ²/k. Its Fisher information
at the outputs (r = log μ) comes by differentiating the KL divergence twice, so only two formulas are written here.

    python examples/counts.py
"""

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


def model(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def data(key, count):
    """Return inputs and counts whose log-mean is 2 sin(x₁) + x₂."""
    k1, k2, k3 = jax.random.split(key, 3)
    x = jax.random.uniform(k1, (count, 2), minval=-2, maxval=2)
    log_mean = 2 * jnp.sin(x[:, :1]) + x[:, 1:]
    rate = jnp.exp(log_mean) * jax.random.gamma(k2, SPREAD, (count, 1)) / SPREAD
    return x, jax.random.poisson(k3, rate).astype(x.dtype), log_mean


def main(steps=30, count=2000):
    """Fit both likelihoods; return the error of each one's log-mean."""
    x, counts, log_mean = data(jax.random.key(0), count)
    k1, k2 = jax.random.split(jax.random.key(1))
    start = {
        "w": jax.random.normal(k1, (2, 20)),
        "b": jnp.zeros(20),
        "v": 0.1 * jax.random.normal(k2, (20, 1)),
    }
    errors = {}
    for name, likelihood in {"negative binomial": negative_binomial, "Poisson": ng.Poisson()}.items():
        assert ng.check(model, likelihood, start, (x, counts))
        opt = ng.natural_gradient(model, likelihood)
        *_, (params, _, _) = ng.loop(opt, start, [(x, counts)] * steps)
        errors[name] = float(jnp.sqrt(jnp.mean((model(params, x) - log_mean) ** 2)))
        print(f"{name:18s} error of the log-mean {errors[name]:.3f}")
    return errors


if __name__ == "__main__":
    main()
