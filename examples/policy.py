"""Natural policy gradient (Kakade 2001) with a step of constant KL, on a pole to be balanced on a cart.

The policy gradient is computed here, from sampled episodes; natgrad supplies the metric (the Fisher information of
the policy, on the states it visited) and the length (`ng.KLRadius`: the policy changes by the same amount each time).

    python examples/policy.py
"""

from functools import partial

import jax
import jax.numpy as jnp

import natgrad as ng

HORIZON, EPISODES = 200, 64


def policy(params, states):
    """Return the logits of pushing left and right."""
    return jnp.tanh(states @ params["w"] + params["b"]) @ params["v"]


def init(key, hidden=16):
    k1, k2 = jax.random.split(key)
    return {
        "w": jax.random.normal(k1, (4, hidden)),
        "b": jnp.zeros(hidden),
        "v": 0.01 * jax.random.normal(k2, (hidden, 2)),
    }


def push(state, action):
    """Return the state 20 ms later (Barto, Sutton & Anderson 1983)."""
    x, speed, angle, spin = state.T
    force = jnp.where(action == 1, 10.0, -10.0)
    swing = (force + 0.05 * spin**2 * jnp.sin(angle)) / 1.1
    turn = (9.8 * jnp.sin(angle) - jnp.cos(angle) * swing) / (0.5 * (4 / 3 - 0.1 * jnp.cos(angle) ** 2 / 1.1))
    thrust = swing - 0.05 * turn * jnp.cos(angle) / 1.1
    return jnp.stack(
        [x + 0.02 * speed, speed + 0.02 * thrust, angle + 0.02 * spin, spin + 0.02 * turn], axis=1
    )


def play(params, key):
    """Return the states, actions and whether the pole still stood, each (horizon, episodes, …)."""
    start_key, key = jax.random.split(key)
    start = jax.random.uniform(start_key, (EPISODES, 4), minval=-0.05, maxval=0.05)

    def tick(carry, key):
        state, alive = carry
        action = jax.random.categorical(key, policy(params, state))
        following = push(state, action)
        stands = alive & (jnp.abs(following[:, 0]) < 2.4) & (jnp.abs(following[:, 2]) < 0.2095)
        return (following, stands), (state, action, alive)

    return jax.lax.scan(tick, (start, jnp.ones(EPISODES, bool)), jax.random.split(key, HORIZON))[1]


def policy_gradient(params, states, actions, alive):
    """Return the gradient of minus the expected return: a reward of 1 a tick, less the mean at that tick."""
    weights = alive.astype(states.dtype)
    to_go = jnp.cumsum(weights[::-1], axis=0)[::-1]
    baseline = jnp.sum(to_go * weights, axis=1) / jnp.maximum(jnp.sum(weights, axis=1), 1)
    advantage = (to_go - baseline[:, None]) * weights

    def surrogate(params):
        nll = ng.Categorical().nll(policy(params, states.reshape(-1, 4)), actions.reshape(-1))
        return jnp.sum(advantage.reshape(-1) * nll) / jnp.sum(weights)

    return jax.grad(surrogate)(params)


def natural(radius=0.02):
    return ng.natural_gradient(
        policy,
        ng.Categorical(),
        search=ng.KLRadius(radius, max_rate=1e3),
        damping=ng.Constant(1e-4),
        solver=ng.CG(maxiter=10),
    )


def train(opt, updates=60, seed=0):
    """Return the mean length of the episodes along the run."""
    start, key = jax.random.split(jax.random.key(seed))
    params = init(start)

    def update(carry, key):
        params, state = carry
        states, actions, alive = play(params, key)
        gradient = policy_gradient(params, states, actions, alive)
        visited = (states.reshape(-1, 4), None, alive.reshape(-1).astype(states.dtype))
        params, state, info = opt.step(params, state, visited, gradient=gradient)
        return (params, state), (jnp.sum(alive) / EPISODES, info.kl)

    keys = jax.random.split(key, updates)
    return jax.jit(partial(jax.lax.scan, update))((params, opt.init(params)), keys)[1]


def main(updates=60):
    print(f"ticks the pole stands, of {HORIZON}, mean of {EPISODES} episodes, by update")
    contestants = {
        f"gradient, rate {rate}": ng.sgd(policy, ng.Categorical(), learning_rate=rate) for rate in (0.1, 1.0)
    }
    contestants["natural gradient, KL 0.02"] = natural()
    results = {}
    for name, opt in contestants.items():
        length, _ = train(opt, updates)
        results[name] = length
        at = [min(i, updates - 1) for i in (0, updates // 4, updates // 2, updates - 1)]
        print(f"  {name:26s}", "  ".join(f"{i + 1}: {float(length[i]):5.1f}" for i in at))
    return results


if __name__ == "__main__":
    main()
