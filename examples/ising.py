"""The ground state of a chain of spins: stochastic reconfiguration is the natural gradient of the energy.

H = −Σ σᶻᵢσᶻᵢ₊₁ − Σ σˣᵢ, periodic, ten spins: the exact energy is −2 / sin(π/20) = −12.784906. The wave function is a
restricted Boltzmann machine, log ψ(s) = Σ log 2cosh(b + sW). All 1024 states are summed, so nothing is sampled.

A state s is seen with probability ψ(s)² / Σψ²: a categorical distribution with logits 2 log ψ. Its Fisher metric is
four times the covariance of ∇ log ψ, the matrix of stochastic reconfiguration (Sorella 1998). The loss is the energy.

    python examples/ising.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import natgrad as ng

SPINS = 10
EXACT = -2 / np.sin(np.pi / (2 * SPINS))
STATES = 1.0 - 2 * ((np.arange(2**SPINS)[:, None] >> np.arange(SPINS)) & 1)
FLIPPED = np.arange(2**SPINS)[:, None] ^ (1 << np.arange(SPINS))
"""For every state, those that differ from it in one spin."""
BONDS = np.sum(STATES * np.roll(STATES, 1, axis=1), axis=1)


def logits(params, _):
    """Return 2 log ψ of all states, as one example."""
    return 2 * jnp.sum(jnp.logaddexp(a := params["b"] + STATES @ params["w"], -a), axis=1)[None]


def energy(logits, _):
    """Return ⟨ψ|H|ψ⟩ / ⟨ψ|ψ⟩."""
    psi = jnp.exp((logits - jnp.max(logits, axis=1, keepdims=True)) / 2)
    changed = -BONDS * psi - jnp.sum(psi[:, FLIPPED], axis=2)
    return jnp.sum(psi * changed, axis=1) / jnp.sum(psi**2, axis=1)


def main(seed=0, steps=100, hidden=20, goal=1e-4):
    """Return the energies, step by step, until one is within `goal` of the exact one."""
    with jax.enable_x64(True):
        w = 0.1 * jax.random.normal(jax.random.key(seed), (SPINS, hidden))
        params, batch = {"w": w, "b": jnp.zeros(hidden)}, (jnp.zeros((1, 1)), jnp.zeros(1, jnp.int32))
        given = {"solver": ng.Direct(), "search": ng.LineSearch(), "damping": ng.Constant(1e-4)}
        opt = ng.natural_gradient(logits, ng.Categorical(), objective=energy, **given)
        state, found = opt.init(params), []
        for number in range(steps):
            params, state, info = opt.step(params, state, batch)
            found.append(float(info.new_loss))
            if number % 10 == 0 or found[-1] - EXACT < goal:
                print(f"step {number + 1}: energy {found[-1]:.8f}")
            if found[-1] - EXACT < goal:
                break
    print(f"exact: {EXACT:.8f}")
    return found


if __name__ == "__main__":
    main()
