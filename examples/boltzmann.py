"""Metric-free natural gradient for a Boltzmann machine (Desjardins et al. 2013), on the parts of natgrad.

The metric of a model p(x) ∝ exp(−E(x)) is the covariance of the energy's gradient over the model's own samples.
With the energy as the "model" and the energy itself as the "loss", that is `ng.EmpiricalFisher(centered=True)` on
the persistent chains: a product is one JVP and one VJP, and no matrix of samples × parameters is ever stored.

    python examples/boltzmann.py [picture.png]
"""

import helper
import jax
import jax.numpy as jnp

import natgrad as ng

SIDE, HIDDEN, CHAINS = 3, 8, 256
ENERGY = ng.Likelihood.from_loss(lambda energies, _: energies)
LINES, EVERY = (((jnp.arange(2**n)[:, None] >> jnp.arange(n)) & 1).astype("f4") for n in (SIDE, SIDE**2))
DATA = jnp.concatenate([jnp.repeat(LINES, SIDE, axis=1), jnp.tile(LINES, (1, SIDE))])  # bars and stripes


def energy(params, units):
    v, h = units
    return -(jnp.sum((v @ params["w"]) * h, axis=1) + v @ params["b"] + h @ params["c"])


def hidden_given(params, v, key):
    return jax.random.bernoulli(key, jax.nn.sigmoid(v @ params["w"] + params["c"])).astype(v.dtype)


def sweep(params, units, key):
    """Return the chains after five rounds of block Gibbs sampling."""
    for up, down in jax.random.split(key, (5, 2)):
        h = hidden_given(params, units[0], up)
        on = jax.nn.sigmoid(h @ params["w"].T + params["b"])
        units = jax.random.bernoulli(down, on).astype(h.dtype), h
    return units


def gap(params, chains):
    """Its gradient is that of −log p: E_data[∇E] − E_model[∇E], the hidden units of the data at their means."""
    means = jax.lax.stop_gradient(jax.nn.sigmoid(DATA @ params["w"] + params["c"]))
    return jnp.mean(energy(params, (DATA, means))) - jnp.mean(energy(params, chains))


def exact_nll(params):
    """Return −log p of the data, by enumerating every visible vector."""
    reach = [jax.nn.softplus(v @ params["w"] + params["c"]).sum(1) for v in (DATA, EVERY)]
    return jax.nn.logsumexp(EVERY @ params["b"] + reach[1]) - jnp.mean(DATA @ params["b"] + reach[0])


def natural():
    options = {"metric": ng.EmpiricalFisher(centered=True), "damping": ng.Constant(0.1)}
    return ng.natural_gradient(energy, ENERGY, learning_rate=0.1, solver=ng.CG(100, 1e-6), **options)


def train(opt, steps=500):
    k1, k2, k3 = jax.random.split(jax.random.key(0), 3)
    w, b, c = jax.random.normal(k1, (SIDE**2, HIDDEN)) / 100, jnp.zeros(SIDE**2), jnp.zeros(HIDDEN)
    v = jax.random.bernoulli(k2, 0.5, (CHAINS, SIDE**2)).astype(jnp.float32)

    def step(carry, key):
        params, state, units = carry[0], carry[1], sweep(carry[0], carry[2], key)
        given = {"batch": (units, jnp.zeros(CHAINS)), "gradient": jax.grad(gap)(params, units)}
        params, state, _ = opt.step(params, state, **given)
        return (params, state, units), exact_nll(params)

    params = {"w": w, "b": b, "c": c}
    start, keys = (params, opt.init(params), (v, hidden_given(params, v, k3))), jax.random.split(k3, steps)
    return jax.jit(lambda carry: jax.lax.scan(step, carry, keys)[1])(start)


def main(steps=500, out=None):
    contestants = {"natural gradient": natural(), "gradient": ng.sgd(energy, ENERGY, learning_rate=0.5)}
    curves = {name: (jnp.arange(1, steps + 1), train(opt, steps)) for name, opt in contestants.items()}
    helper.show(out, curves, "Bars and stripes", "update", "−log p of the data")


if __name__ == "__main__":
    helper.run(main)
