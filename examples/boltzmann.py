"""Metric-free natural gradient for a Boltzmann machine (Desjardins et al. 2013), on the parts of natgrad.

The metric of a model p(x) ∝ exp(−E(x)) is the covariance of the energy's gradient over the model's own samples.
With the energy as the "model" and the energy itself as the "loss", that is `ng.EmpiricalFisher(centered=True)` on
the persistent chains: a product is one JVP and one VJP, and no matrix of samples × parameters is ever stored.

    python examples/boltzmann.py
"""

import itertools
from functools import partial

import jax
import jax.numpy as jnp

import natgrad as ng

SIDE, HIDDEN = 3, 8


def energy(params, units):
    """Return E(v, h) of each row."""
    v, h = units
    return -(jnp.sum((v @ params["w"]) * h, axis=1) + v @ params["b"] + h @ params["c"])


def bars_and_stripes():
    lines = jnp.array(list(itertools.product([0.0, 1.0], repeat=SIDE)), jnp.float32)
    bars = jnp.repeat(lines, SIDE, axis=1)
    stripes = jnp.tile(lines, (1, SIDE))
    return jnp.concatenate([bars, stripes])


def hidden_given(params, v, key):
    return jax.random.bernoulli(key, jax.nn.sigmoid(v @ params["w"] + params["c"])).astype(v.dtype)


def visible_given(params, h, key):
    return jax.random.bernoulli(key, jax.nn.sigmoid(h @ params["w"].T + params["b"])).astype(h.dtype)


def sweep(params, units, key, sweeps=5):
    """Return the chains after a few rounds of block Gibbs sampling."""

    def once(units, key):
        v, h = units
        up, down = jax.random.split(key)
        h = hidden_given(params, v, up)
        return (visible_given(params, h, down), h), None

    return jax.lax.scan(once, units, jax.random.split(key, sweeps))[0]


def gradient(params, data, chains):
    """Return ∇(−log p) = E_data[∇E] − E_model[∇E], the hidden units of the data at their means."""
    filled = (data, jax.nn.sigmoid(data @ params["w"] + params["c"]))

    def gap(params):
        return jnp.mean(energy(params, filled)) - jnp.mean(energy(params, chains))

    return jax.grad(gap)(params)


def exact_nll(params, data):
    """Return −log p of the data, by enumerating every visible vector."""

    def free_energy(v):
        return -(v @ params["b"] + jnp.sum(jax.nn.softplus(v @ params["w"] + params["c"]), axis=1))

    every = jnp.array(list(itertools.product([0.0, 1.0], repeat=SIDE**2)), jnp.float32)
    return jnp.mean(free_energy(data)) + jax.nn.logsumexp(-free_energy(every))


def natural(learning_rate=0.1, damping=0.1):
    return ng.natural_gradient(
        energy,
        ng.Likelihood.from_loss(lambda energies, _: energies),
        metric=ng.EmpiricalFisher(centered=True),
        damping=ng.Constant(damping),
        solver=ng.CG(maxiter=100, rtol=1e-6),
        learning_rate=learning_rate,
    )


def plain(learning_rate=0.1):
    return ng.sgd(energy, ng.Likelihood.from_loss(lambda energies, _: energies), learning_rate=learning_rate)


def train(opt, steps=500, chains=256, seed=0):
    """Return −log p along the run."""
    keys = jax.random.split(jax.random.key(seed), 4)
    data = bars_and_stripes()
    params = {
        "w": 0.01 * jax.random.normal(keys[0], (SIDE**2, HIDDEN)),
        "b": jnp.zeros(SIDE**2),
        "c": jnp.zeros(HIDDEN),
    }
    particles = jax.random.bernoulli(keys[1], 0.5, (chains, SIDE**2)).astype(jnp.float32)
    units = (particles, hidden_given(params, particles, keys[2]))

    def step(carry, key):
        params, state, units = carry
        units = sweep(params, units, key)
        batch = (units, jnp.zeros(chains))
        params, state, _ = opt.step(params, state, batch, gradient=gradient(params, data, units))
        return (params, state, units), exact_nll(params, data)

    carry = (params, opt.init(params), units)
    _, nll = jax.jit(partial(jax.lax.scan, step))(carry, jax.random.split(keys[3], steps))
    return nll


def main(steps=500):
    best = -float(jnp.mean(jnp.log(jnp.full(16, 1 / 16))))
    print(f"−log p of bars and stripes after {steps} updates (a perfect model: about {best:.2f})")
    results = {}
    for name, opt in {
        "gradient, rate 0.1": plain(0.1),
        "gradient, rate 0.5": plain(0.5),
        "natural gradient, rate 0.1": natural(0.1),
    }.items():
        nll = train(opt, steps)
        results[name] = nll
        print(f"  {name:28s} {float(nll[-1]):.3f}")
    return results


if __name__ == "__main__":
    main()
