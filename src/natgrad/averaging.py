"""Averaged iterates: what the noise of minibatches adds to the last steps is taken out of what one keeps.

    θ̄ ← θ̄ + s (θ − θ̄),    s = max(1 − γ, 10 / (t + 9)) at step t

The path itself is not changed (Polyak & Juditsky 1992). The memory is about a tenth of the path, so that early on the
average does not lag behind, and 1 / (1 − γ) steps at most. Where every step sees the same batch there is no noise to
average out: θ̄ is then θ.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.here import LastStep
from natgrad.judge import fresh
from natgrad.optimizer import Optimizer
from natgrad.part import Part, require
from natgrad.search import Search
from natgrad.state import Info, State
from natgrad.tree import Tree

ONE_BATCH = 4
"""So many steps in a row with the loss that the last one left behind have seen one batch."""


class AveragedState(NamedTuple):
    """What an averaged optimizer carries from step to step."""

    inner: State
    """Of the optimizer itself."""
    average: Tree
    """θ̄: what to evaluate and to keep, in float32 at least. Before the first step, the parameters. The context of a
    `Stateful` model, `info.context`, goes with the parameters themselves."""
    alike: Array
    """Steps in a row, up to 4, whose loss is what the last one left behind: from four on they see one batch."""


@dataclass(frozen=True)
class Averaged(Part):
    """An optimizer, and an average of the parameters on its path, `state.average`.

        opt = ng.Averaged(ng.natural_gradient(model, likelihood), decay=0.99)

    The last minibatches pull the parameters to and fro; their average is steadier and usually better, at the price of
    one more copy of the parameters. Steps, and what they return, are the optimizer's own.
    """

    optimizer: Optimizer
    decay: float = 0.99
    """γ: 0.99 remembers about a hundred steps, once there are a thousand."""

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, Averaged):
            raise TypeError("Averaged got an average: give the recipe average=, or ng.Averaged an optimizer.")
        require(
            lambda: 0 <= self.decay < 1, f"Averaged(decay={self.decay}): give a number from 0, and below 1."
        )

    @property
    def search(self) -> Search:
        """The optimizer's."""
        return self.optimizer.search

    def init(self, params: Tree, key: Array | None = None) -> AveragedState:
        """Return the state before the first step."""
        start = jax.tree.map(_start, params)
        return AveragedState(self.optimizer.init(params, key), start, jnp.zeros((), jnp.int32))

    def step(
        self,
        params: Tree,
        state: AveragedState,
        batch: Any,
        *,
        metric_inputs: Tree = None,
        metric_weights: Tree = None,
        metric_targets: Tree = None,
        search_batch: Any = None,
        ratio_batch: Any = None,
        context: Tree = None,
        gradient: Tree = None,
        learning_rate: Any = None,
    ) -> tuple[Tree, AveragedState, Info]:
        """Take the optimizer's step, with its arguments (see `Optimizer.step`), and the result into the average."""
        given = {
            "metric_inputs": metric_inputs,
            "metric_weights": metric_weights,
            "metric_targets": metric_targets,
            "search_batch": search_batch,
            "ratio_batch": ratio_batch,
            "context": context,
            "gradient": gradient,
            "learning_rate": learning_rate,
        }
        if not isinstance(state, AveragedState):
            raise TypeError("state does not belong to ng.Averaged: start from its own init(params).")
        # One program for both, where a program can hold the search.
        step = _step_on_host if self.search.on_host else _step
        return step(self, params, state, batch, given)


def _step_on_host(
    opt: Averaged, params: Tree, state: AveragedState, batch: Any, given: dict[str, Any]
) -> tuple[Tree, AveragedState, Info]:
    params, inner, info = opt.optimizer.step(params, state.inner, batch, **given)
    alike = _alike(state, info)
    return params, AveragedState(inner, _average(opt, state.average, params, inner.steps, alike), alike), info


_step = jax.jit(_step_on_host)


def _alike(state: AveragedState, info: Info) -> Array:
    """Return how many steps in a row saw one batch. Two batches have the same loss by chance; four in a row are one."""
    last = state.inner.last
    if not isinstance(last, LastStep):
        return state.alike
    same = (last.curvature > 0) & ~fresh(info.loss, last)
    return jnp.where(same, jnp.minimum(state.alike + 1, ONE_BATCH), 0).astype(state.alike.dtype)


@jax.jit
def _average(opt: Averaged, average: Tree, params: Tree, steps: Array, alike: Array) -> Tree:
    """Return the average with these parameters in it."""
    least = jnp.asarray(1 - opt.decay).astype(jnp.float32)
    share = jnp.maximum(least, 10 / (steps.astype(jnp.float32) + 9))
    share = jnp.where(alike == ONE_BATCH, 1, share)

    def one(old: Array, new: Array) -> Array:
        if not jnp.issubdtype(new.dtype, jnp.floating):
            return new  # Frozen: a counter, a key.
        moved = old + share.astype(old.dtype) * (new.astype(old.dtype) - old)
        return jnp.where(new.astype(old.dtype) == old, old, moved)  # A mask of infinities stays one.

    return jax.tree.map(one, average, params)


def _start(leaf: Array) -> Array:
    """Return a copy, so that parameters and state may both be donated; of half precision, in single."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf.copy()
    return jnp.array(leaf, tree.at_least_single(leaf.dtype))
