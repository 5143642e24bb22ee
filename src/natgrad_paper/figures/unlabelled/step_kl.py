"""How far a step moves the model on inputs it was not measured on: the mechanism behind figure 1."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax import Array

import natgrad as ng
from natgrad import tree
from natgrad_paper.training.problem import Tree

WHERE = ("kl_metric", "kl_gradient", "kl_held_out")
"""The fields of a logged step, for the inputs of the metric, those of the gradient, and held-out ones."""


@dataclass(frozen=True)
class StepKL:
    """½ dᵀFd of the same step d with F on each of three batches: where F was measured, and elsewhere.

    To second order it is the KL divergence between the model before and after the step, on these inputs.
    """

    model: Callable[[Tree, Array], Array]
    likelihood: Any
    count: int
    """Held-out inputs, at most."""

    def __call__(
        self, before: Tree, after: Tree, gradient: Array, metric: Array, held_out: Array
    ) -> dict[str, Array]:
        """Return the three, by the fields of `WHERE`."""
        step = tree.sub(after, before)
        batches = (metric, gradient, held_out[: self.count])
        products = (ng.metric_product(self.model, self.likelihood, before, inputs) for inputs in batches)
        return {field: F.quadratic(step) / 2 for field, F in zip(WHERE, products, strict=True)}
