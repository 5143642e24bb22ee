"""Averaged iterates: what the noise of minibatches adds to the last steps is taken out of what one keeps.

    θ̄ ← θ̄ + s (θ − θ̄),    s = max(1 − γ, 10 / (t + 9)) at step t

The path itself is not changed (Polyak & Juditsky 1992). The memory is about a tenth of the path, so that early on the
average does not lag behind, and 1 / (1 − γ) steps at most.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.optimizer import Optimizer
from natgrad.state import Info, State
from natgrad.tree import Tree


class AveragedState(NamedTuple):
    """What an averaged optimizer carries from step to step."""

    inner: State
    """Of the optimizer itself."""
    average: Tree
    """θ̄: what to evaluate and to keep, in float32 at least. Before the first step, the parameters. The context of a
    `Stateful` model, `info.context`, goes with the parameters themselves."""


@dataclass(frozen=True)
class Averaged:
    """An optimizer, and an average of the parameters on its path, `state.average`.

        opt = ng.Averaged(ng.fast(model, likelihood), decay=0.99)

    The last minibatches pull the parameters to and fro; their average is steadier and usually better, at the price of
    one more copy of the parameters. Steps, and what they return, are the optimizer's own.
    """

    optimizer: Optimizer
    decay: float = 0.99
    """γ: 0.99 remembers about a hundred steps, once there are a thousand."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"Averaged(decay={self.decay}): give a number in [0, 1).")

    def init(self, params: Tree, key: Array | None = None) -> AveragedState:
        """Return the state before the first step."""
        return AveragedState(self.optimizer.init(params, key), jax.tree.map(_start, params))

    def step(
        self, params: Tree, state: AveragedState, *batch: Any, **options: Any
    ) -> tuple[Tree, AveragedState, Info]:
        """Take the optimizer's step, with its arguments, and the result into the average."""
        params, inner, info = self.optimizer.step(params, state.inner, *batch, **options)
        share = jnp.maximum(1 - self.decay, 10 / (inner.steps.astype(jnp.float32) + 9))

        def average(old: Array, new: Array) -> Array:
            if not jnp.issubdtype(new.dtype, jnp.floating):
                return new  # Frozen: a counter, a key.
            moved = old + share.astype(old.dtype) * (new.astype(old.dtype) - old)
            return jnp.where(new.astype(old.dtype) == old, old, moved)  # A mask of infinities stays one.

        return params, AveragedState(inner, jax.tree.map(average, state.average, params)), info


def _start(leaf: Array) -> Array:
    """Return a copy, so that parameters and state may both be donated; of half precision, in single."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf.copy()
    return jnp.array(leaf, tree.at_least_single(leaf.dtype))
