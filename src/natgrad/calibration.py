"""The first λ, which `LevenbergMarquardt("calibrate")` looks for by trying steps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad.damping import Answer, Damping


class Calibration(NamedTuple):
    """A search for a λ whose ρ lies in [0.75, 0.95]: the model can be trusted, but the step is not too short.

    This is Martens' rule of thumb for the first step. λ changes by factors of 8 until the right one is bracketed,
    then by bisection of log λ. The search ends at a bound.
    """

    damping: Array
    low: Array
    """The largest λ that was too small; 0 if none."""
    high: Array
    """The smallest λ that was too large; 0 if none."""
    tries: Array
    done: Array

    @classmethod
    def start(cls, damping: Array) -> "Calibration":
        """Start from a first guess."""
        none = jnp.zeros_like(damping)
        return cls(damping, none, none, jnp.zeros((), jnp.int32), jnp.array(False))

    def judge(self, rho: Array, answer: Array, bounds: tuple[float, float]) -> "Calibration":
        """Return the search after one more step, from that step's ρ and `Answer`."""
        large = (answer == Answer.LOWERED_UNMEASURABLE) | (rho > 0.95)
        small = ~large & ~(rho >= 0.75)
        low = jnp.where(small, self.damping, self.low)
        high = jnp.where(large, self.damping, self.high)
        between = jnp.sqrt(low) * jnp.sqrt(high)
        outside = jnp.clip(jnp.where(small, self.damping * 8, self.damping / 8), *bounds)
        following = jnp.where((low > 0) & (high > 0), between, outside)
        tries = self.tries + 1
        at_bound = following == self.damping
        idle = (answer == Answer.KEPT_REFUSED) | (answer == Answer.KEPT_NEGLIGIBLE)
        done = ~(small | large) | (tries >= 20) | at_bound | idle
        return Calibration(jnp.where(done, self.damping, following), low, high, tries, done)


def calibrated(
    rule: Damping, step: Callable[[Any], tuple[Any, Any, Any]], state: Any
) -> tuple[Any, Any, Any]:
    """Return the step of a state. Before the first accepted step, try one λ after another until ρ is right."""
    looking = state.record.sure == 0

    def unfinished(carry: tuple[Calibration, Any]) -> Array:
        search, _ = carry
        return (search.tries == 0) | (looking & ~search.done)

    def attempt(carry: tuple[Calibration, Any]) -> tuple[Calibration, Any]:
        search, _ = carry
        params, after, info = step(state._replace(damping=search.damping))
        return search.judge(info.rho, info.answer, rule.bounds), (params, after, info)

    # The loop starts from zeros, so that the step is compiled once.
    nothing = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), jax.eval_shape(step, state))
    return jax.lax.while_loop(unfinished, attempt, (Calibration.start(state.damping), nothing))[1]


def calibrated_on_host(
    rule: Damping, step: Callable[[Any], tuple[Any, Any, Any]], state: Any
) -> tuple[Any, Any, Any]:
    """Return what `calibrated` returns, for a step that cannot be compiled."""
    looking = not state.record.sure
    search = Calibration.start(state.damping)
    while True:
        found = step(state._replace(damping=search.damping))
        search = search.judge(found[2].rho, found[2].answer, rule.bounds)
        if not looking or search.done:
            return found
