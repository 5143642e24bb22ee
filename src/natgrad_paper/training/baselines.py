"""Baselines from optax, for a skeptical reader, with the two functions that every competitor has."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

import natgrad as ng
from natgrad import tree
from natgrad.problem import Problem as Loss
from natgrad_paper.training.problem import Problem, Tree

EPOCH = 250
"""Steps between two changes of Nesterov's momentum."""


class Info(NamedTuple):
    """What a first-order step reports."""

    loss: Array
    accepted: Array
    outcome: Array


@dataclass(frozen=True)
class FirstOrder:
    """An optax transformation on the loss that natgrad's own methods minimize, by default the mean nll."""

    model: Callable[[Tree, Any], Any]
    likelihood: Any
    transformation: Any
    searches: bool = False
    """Whether it searches along its direction, and keeps the value and gradient it found there."""
    asks: bool = False
    """Whether its update asks for the value of the loss."""
    objective: Callable[[Tree, Tree], Array] | None = None
    """The loss of each case, if it is not the likelihood's."""
    evaluated: Callable[[Tree, Tree], Tree] | None = None
    """From (state, parameters) to the parameters to judge, if they are not the last ones."""

    def init(self, params: Tree) -> Tree:
        """Return the transformation's state."""
        return self.transformation.init(params)

    def kept(self, params: Tree, state: Tree) -> Tree:
        """Return the parameters to judge."""
        return params if self.evaluated is None else self.evaluated(state, params)

    def step(self, params: Tree, state: Tree, batch: Any) -> tuple[Tree, Tree, Info]:
        """Take a step; one that meets a NaN or an infinity is refused, as everywhere here."""
        whole = Loss(self.model, self.likelihood, self.objective)
        examples = whole.examples(params, *batch)

        def loss(params: Tree) -> Array:
            return whole.total(whole.evaluate(params, examples.inputs)[0], examples)

        if self.searches:
            value, gradient = optax.value_and_grad_from_state(loss)(params, state=state)
            extras = {"value": value, "grad": gradient, "value_fn": loss}
        else:
            value, gradient = jax.value_and_grad(loss)(params)
            extras = {"value": value} if self.asks else {}
        updates, new_state = self.transformation.update(gradient, state, params, **extras)
        moved = optax.apply_updates(params, updates)
        accepted = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(updates))
        if self.searches:
            # A search that found no finite loss returns a step of length 0, and an infinite error.
            accepted &= jnp.isfinite(optax.tree.get(new_state, "decrease_error"))
        params, state = tree.where(accepted, (moved, new_state), (params, state))
        outcome = jnp.where(accepted, ng.Outcome.ACCEPTED, ng.Outcome.NONFINITE_GRADIENT)
        return params, state, Info(value, accepted, outcome)


class Averaging(NamedTuple):
    """What a transformation carries that also averages the parameters."""

    inner: Any
    average: Tree
    steps: Array


def averaged(rule: Any, decay: float) -> Any:
    """Return a transformation that also averages the parameters over its last steps, as `ng.Averaged` does."""
    inner = optax.with_extra_args_support(rule)

    def init(params: Tree) -> Averaging:
        return Averaging(inner.init(params), params, jnp.zeros((), jnp.int32))

    def update(updates: Tree, state: Averaging, params: Tree, **extras: Any) -> tuple[Tree, Averaging]:
        updates, after = inner.update(updates, state.inner, params, **extras)
        steps = state.steps + 1
        share = jnp.maximum(1 - decay, 10 / (steps.astype(jnp.float32) + 9))
        moved = optax.apply_updates(params, updates)
        average = jax.tree.map(
            lambda old, new: old + share.astype(old.dtype) * (new - old), state.average, moved
        )
        return updates, Averaging(after, average, steps)

    return optax.GradientTransformationExtraArgs(init, update)


def momentum(rate: Any, highest: float) -> Any:
    """Return Nesterov momentum on the schedule of Sutskever et al. (2013): 1/2, 3/4, 5/6, … up to `highest`."""

    def schedule(step: Array) -> Array:
        return jnp.minimum(1 - 0.5 / (step // EPOCH + 1).astype(jnp.float32), highest)

    descent = optax.inject_hyperparams(optax.sgd, static_args=("nesterov",))
    return descent(learning_rate=rate, momentum=schedule, nesterov=True)


def nesterov(problem: Problem, rate: float, highest: float) -> FirstOrder:
    """Return Nesterov momentum."""
    return FirstOrder(problem.model, problem.likelihood, momentum(rate, highest))


def adam(problem: Problem, rate: float) -> FirstOrder:
    """Return Adam with its usual constants."""
    return FirstOrder(problem.model, problem.likelihood, optax.adam(rate))


def lbfgs(problem: Problem, memory: int) -> FirstOrder:
    """Return L-BFGS with optax's zoom line search."""
    return FirstOrder(problem.model, problem.likelihood, optax.lbfgs(memory_size=memory), searches=True)
