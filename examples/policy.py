"""Natural policy gradient (Kakade 2001) with a step of constant KL, on a pole to be balanced on a cart.

The policy gradient is computed here, from sampled episodes; natgrad supplies the metric (the Fisher information of
the policy, on the states it visited) and the length (`ng.KLRadius`: the policy changes by the same amount each time).

    python examples/policy.py [picture.png]
"""

import helper
import jax
import jax.numpy as jnp

import natgrad as ng

HORIZON, EPISODES = 200, 64


def policy(params, states):
    return jnp.tanh(states @ params["w"] + params["b"]) @ params["v"]


def push(state, action):
    """Return the state 20 ms later (Barto, Sutton & Anderson 1983)."""
    _, speed, angle, spin = state.T
    swing = (jnp.where(action == 1, 10.0, -10.0) + 0.05 * spin**2 * jnp.sin(angle)) / 1.1
    turn = (9.8 * jnp.sin(angle) - jnp.cos(angle) * swing) / (0.5 * (4 / 3 - 0.1 * jnp.cos(angle) ** 2 / 1.1))
    thrust = swing - 0.05 * turn * jnp.cos(angle) / 1.1
    return state + 0.02 * jnp.stack([speed, thrust, spin, turn], axis=1)


def play(params, key):  # Returns states, actions and whether the pole stood: (horizon, episodes, …).
    def tick(carry, key):
        state, alive = carry
        action = jax.random.categorical(key, policy(params, state))
        new = push(state, action)
        stands = (jnp.abs(new[:, 0]) < 2.4) & (jnp.abs(new[:, 2]) < 0.2095)
        return (new, alive & stands), (state, action, alive.astype(state.dtype))

    start = jax.random.uniform(key, (EPISODES, 4), minval=-0.05, maxval=0.05), jnp.ones(EPISODES, bool)
    return jax.lax.scan(tick, start, jax.random.split(key, HORIZON))[1]


def surrogate(params, states, actions, alive):
    """Its gradient is that of minus the expected return: a reward of 1 per tick, less the mean at that tick."""
    to_go = jnp.cumsum(alive[::-1], axis=0)[::-1]
    mean = jnp.average(to_go, axis=1, weights=alive + 1e-9, keepdims=True)
    nll = ng.Categorical().nll(policy(params, states.reshape(-1, 4)), actions.reshape(-1))
    return jnp.sum(((to_go - mean) * alive).reshape(-1) * nll) / jnp.sum(alive)


def natural(radius=0.02):
    given = {"search": ng.KLRadius(radius, max_rate=1e3), "damping": ng.Constant(1e-4), "solver": ng.CG(10)}
    return ng.natural_gradient(policy, ng.Categorical(), **given)


def train(opt, updates=60, seed=0):
    """Return the mean length of the episodes along the run, and each step's KL."""
    k1, k2, key = jax.random.split(jax.random.key(seed), 3)
    w, v = jax.random.normal(k1, (4, 16)), 0.01 * jax.random.normal(k2, (16, 2))
    params = {"w": w, "b": jnp.zeros(16), "v": v}

    def update(carry, key):
        states, actions, alive = play(carry[0], key)
        gradient = jax.grad(surrogate)(carry[0], states, actions, alive)
        *carry, info = opt.step(*carry, (states.reshape(-1, 4), None, alive.reshape(-1)), gradient=gradient)
        return tuple(carry), (jnp.sum(alive) / EPISODES, info.kl)

    keys = jax.random.split(key, updates)
    return jax.jit(lambda carry: jax.lax.scan(update, carry, keys)[1])((params, opt.init(params)))


def main(updates=60, out=None):
    plain = ng.sgd(policy, ng.Categorical(), learning_rate=1.0)
    contestants = {"natural gradient, KL 0.02": natural(), "gradient, rate 1": plain}
    curves = {n: (jnp.arange(1, updates + 1), train(opt, updates)[0]) for n, opt in contestants.items()}
    helper.show(out, curves, "A pole on a cart", "update", f"ticks the pole stands, of {HORIZON}")


if __name__ == "__main__":
    helper.run(main)
