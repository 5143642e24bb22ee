"""What is known at θ before a step is chosen: one record, which directions, preconditioners and searches read."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.examples import Examples, OverExamples
from natgrad.metric.operator import Operator
from natgrad.problem import Linearization, Problem, Start
from natgrad.tree import Tree


class Use(IntEnum):
    """What a step draws random numbers for. Each use has a key of its own, so no two uses share random bits."""

    SAMPLES = 0
    """A metric's scores at the outputs."""
    DIAGONAL_FISHER = 1
    DIAGONAL = 2
    JACOBI = 3
    KRONECKER = 4
    TERMS = 5
    """The terms of a sum of metrics."""


class LastStep(NamedTuple):
    """The step before this one. Conjugate methods use it as a row, and the damping rule judges it on the next batch."""

    step: Tree
    """d; 0 at first and after a refusal."""
    curvature: Array
    """dᵀFd on the step's own batch; 0 if it is not known."""
    loss: Array
    """The loss after the step, on the step's own batch."""

    @classmethod
    def none(cls, theta: Tree) -> "LastStep":
        """Return no step."""
        # These are two arrays: a state whose buffers are donated must not hold one of them twice.
        return cls(tree.zeros_like(theta), *(jnp.zeros((), tree.dtype(theta)) for _ in range(2)))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Here:
    """θ and its neighborhood, as one step sees them."""

    problem: Problem
    """The model with its frozen parameters and its context, the meaning of its outputs, and the loss."""
    params: Tree
    """θ."""
    examples: Examples
    """The gradient batch."""
    key: Array
    """The key for what is random in this step."""
    damping: Any = None
    """λ."""
    shift: Any = None
    """What the solver adds to the metric's diagonal: λ, and l2 if it is on all parameters."""
    steps: Any = None
    """The number of the step, for schedules."""
    penalty: Tree = None
    """The diagonal of the l2 term's Hessian; None without one."""
    last: LastStep | None = None
    """The step before this one, if a part of the optimizer uses it."""
    rate: Array | None = None
    """A learning rate given to this step."""
    loss: Any = None
    """The loss on the gradient batch, with its l2 term; None if the gradient was given."""
    gradient: Tree = None
    context: Tree = None
    """The new context of a `Stateful` model."""
    aux: Tree = None
    """What the model returned beside its outputs."""
    own: Start | None = None
    """The loss on the gradient batch, if changes of it are measured."""
    search: Start | None = None
    """The loss on the search batch, if the search measures changes of it."""
    metric_examples: Examples | None = None
    """The batch of the metric, if it is not the gradient's."""
    search_examples: Examples | None = None
    """The batch of the search, if it is not the gradient's."""
    ratio_examples: Examples | None = None
    """The batch of ρ, if it is not the gradient's."""
    linear: OverExamples[Linearization] | None = None
    """The model linearized on the gradient batch; None between two programs."""
    metric: Operator | None = None
    """v ↦ Fv; None if the direction needs no metric, and between two programs."""
    metric_linear: OverExamples[Linearization] | None = None
    """The model linearized on the metric's batch; None where there is no metric."""

    def key_for(self, use: Use) -> Array:
        """Return the key of a use."""
        return jax.random.fold_in(self.key, use)
