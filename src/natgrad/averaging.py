"""Averages of the parameters over steps, which remove the noise that minibatches add to the last steps.

    θ̄ ← θ̄ + s (θ − θ̄),    s = max(1 − γ, 10 / (t + 9)) at step t

The steps themselves do not change (Polyak & Juditsky 1992). The average covers about the last tenth of the steps, so
that it does not lag behind early on, and at most 1 / (1 − γ) steps. If every step sees the same batch, there is no
noise to average out, and θ̄ = θ. To tell, it needs the last step, which the state keeps if λ adapts.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree, validate
from natgrad.judge import fresh
from natgrad.metric.here import LastStep
from natgrad.optimizer import Optimizer
from natgrad.part import Part, require
from natgrad.search import Search
from natgrad.state import Info, State
from natgrad.tree import Tree

ONE_BATCH = 4
"""If this many steps in a row start from the loss that the step before ended with, all saw one batch."""


class AveragedState(NamedTuple):
    """What an averaged optimizer carries from step to step."""

    inner: State
    """The state of the optimizer itself."""
    average: Tree
    """θ̄: what to evaluate and to keep, in float32 at least. Before the first step it equals the parameters. The
    context of a `Stateful` model, `info.context`, belongs to the parameters themselves, not to θ̄."""
    alike: Array
    """How many steps in a row, counted up to 4, began with the loss that the step before ended with. Four mean that
    all of them saw one batch."""


@dataclass(frozen=True)
class Averaged(Part):
    """An optimizer, and an average of the parameters over its steps, `state.average`.

        opt = ng.Averaged(ng.natural_gradient(model, likelihood), decay=0.99)

    The last minibatches pull the parameters back and forth. Their average is steadier and usually better; it takes
    one more copy of the parameters. Steps, and what they return, are the optimizer's own.
    """

    optimizer: Optimizer
    decay: float = 0.99
    """γ: 0.99 averages about a hundred steps, once there are a thousand."""

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, Averaged):
            raise TypeError("Averaged got an average: give the recipe average=, or ng.Averaged an optimizer.")
        require(
            lambda: 0 <= self.decay < 1, f"Averaged(decay={self.decay}): give a number from 0, and below 1."
        )

    @property
    def update(self) -> NoReturn:
        """Name optax's form of the optimizer, if this one stands in an optax chain."""
        validate.not_optax(self)

    @property
    def search(self) -> Search:
        """The optimizer's."""
        return self.optimizer.search

    def init(self, params: Tree, key: Array | None = None) -> AveragedState:
        """Return the state before the first step."""
        inner = self.optimizer.init(params, key)
        return AveragedState(inner, jax.tree.map(_start, params), jnp.zeros((), jnp.int32))

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
        """Take the optimizer's step, with its arguments (see `Optimizer.step`), and add the result to the average."""
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
        # One program does both, unless the search runs on the host.
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
    """Return how many steps in a row saw one batch. Two equal losses may be chance; four in a row mean one batch."""
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
            return new  # A frozen leaf: a counter or a key.
        moved = old + share.astype(old.dtype) * (new.astype(old.dtype) - old)
        return jnp.where(new.astype(old.dtype) == old, old, moved)  # An entry that is infinite stays so.

    return jax.tree.map(one, average, params)


def _start(leaf: Array) -> Array:
    """Return a copy, so that parameters and state may both be donated; half precision becomes single."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf.copy()
    return jnp.array(leaf, tree.at_least_single(leaf.dtype))
