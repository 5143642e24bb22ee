"""One problem of control: a policy that balances a pole on a cart, by the gradient of what its episodes return.

The physics are those of Barto, Sutton and Anderson (1983), with the constants of OpenAI Gym's CartPole.
"""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad_paper.figures.arena.entry import Entry, entry
from natgrad_paper.figures.arena.form import Form
from natgrad_paper.figures.arena.nets import dense, mlp
from natgrad_paper.training.batches import Batches, FullBatch
from natgrad_paper.training.models import Layers
from natgrad_paper.training.problem import Tree

TICKS = 200
"""The most ticks of an episode."""
EPISODES = 64
"""Per step."""
JUDGED = 256
GRAVITY, POLE_MASS, MASS, HALF_LENGTH, FORCE, TICK = 9.8, 0.1, 1.1, 0.5, 10.0, 0.02
FAR, STEEP = 2.4, 0.2095
"""An episode ends beyond these: meters from the middle, and radians."""
policy = partial(mlp, jnp.tanh)


def moved(state: Array, action: Array) -> Array:
    """Return position, speed, angle and angular speed one tick later; action 1 pushes right."""
    _, speed, angle, turning = state
    push = jnp.where(action == 1, FORCE, -FORCE).astype(state.dtype)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    pull = (push + POLE_MASS * HALF_LENGTH * turning**2 * sine) / MASS
    inertia = HALF_LENGTH * (4 / 3 - POLE_MASS * cosine**2 / MASS)
    spin = (GRAVITY * sine - cosine * pull) / inertia
    gain = pull - POLE_MASS * HALF_LENGTH * spin * cosine / MASS
    return state + TICK * jnp.stack([speed, gain, turning, spin])


def play(key: Array, params: Layers, scales: Array, episodes: int) -> tuple[Array, Array, Array]:
    """Return what the policy saw, what it did, and whether the pole still stood: (ticks, episodes, …) each."""
    first, rest = jax.random.split(key)
    start = jax.random.uniform(first, (episodes, 4), scales.dtype, -0.05, 0.05)

    def tick(carried: tuple[Array, Array], key: Array) -> Any:
        state, alive = carried
        seen = state * scales
        action = jax.random.categorical(key, policy(params, seen))
        new = jax.vmap(moved)(state, action)
        stands = alive & (jnp.abs(new[:, 0]) < FAR) & (jnp.abs(new[:, 2]) < STEEP)
        return (jnp.where(stands[:, None], new, state), stands), (seen, action, alive)

    alive = jnp.ones(episodes, bool)
    found: tuple[Array, Array, Array] = jax.lax.scan(tick, (start, alive), jax.random.split(rest, TICKS))[1]
    return found


def advantages(alive: Array, dtype: Any) -> Array:
    """Return each tick's return minus the mean of all episodes at that tick, in units of its spread."""
    lives = alive.astype(dtype)
    returns = jnp.flip(jnp.cumsum(jnp.flip(lives, 0), axis=0), 0) * lives
    usual = returns.sum(axis=1, keepdims=True) / jnp.maximum(lives.sum(axis=1, keepdims=True), 1)
    above = (returns - usual) * lives
    return above / (jnp.sqrt(jnp.sum(above**2) / jnp.sum(lives)) + 1e-8)


def cartpole(form: Form, path: Path | None) -> Entry:
    """Return the policy's problem: its error is 200 minus the length of an episode.

    A case is the number of an episode on which the policy is judged. A step plays its own episodes instead.
    """
    scales, episodes = form.scales(4), form.size(EPISODES)

    def draw(key: Array, params: Tree, batch: Any) -> Any:
        seen, actions, alive = play(key, params, jnp.asarray(scales), episodes)
        above = advantages(alive, seen.dtype)
        weights = alive.reshape(-1).astype(seen.dtype)
        return seen.reshape(-1, 4), (actions.reshape(-1), above.reshape(-1)), weights

    def objective(outputs: Array, targets: tuple[Array, Array]) -> Array:
        actions, above = targets
        chosen = jnp.take_along_axis(jax.nn.log_softmax(outputs), actions[:, None], axis=1)
        return -above * chosen[:, 0]

    def errors(params: Layers, numbers: Array, targets: Array) -> Array:
        def missing(number: Array) -> Array:
            key = jax.random.fold_in(jax.random.key(999), number)
            return TICKS - play(key, params, jnp.asarray(scales), 1)[2].sum(dtype=scales.dtype)

        return jax.vmap(missing)(numbers)

    few, more = form.counts(JUDGED, JUDGED)
    parts = np.split(np.arange(few + 2 * more, dtype=np.uint32), [few, few + more])
    train, test, valid = ((part, np.zeros(len(part), np.uint32)) for part in parts)
    return entry(
        form, policy, ng.Categorical(), partial(dense, units=(4, 32, 2), dtype=form.dtype), "CartPole", (train, test),
        None, errors, "ticks missing to 200", scale="linear", draw=draw, objective=objective, valid=valid,
        batches=Batches(FullBatch()),
    )  # fmt: skip
