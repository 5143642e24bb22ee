"""What a step carries on, what it shows, and what it is given: plain tuples of arrays."""

from enum import IntEnum
from typing import Any, NamedTuple

from jax import Array

from natgrad.directions import Rows, SolverInfo
from natgrad.problem import Start
from natgrad.tree import Tree


class Outcome(IntEnum):
    """What became of a step. Where `info.accepted` is false the parameters are as they were, to the bit."""

    ACCEPTED = 0
    NONFINITE_GRADIENT = 1
    """The loss or its gradient on the gradient batch (or a given `gradient`) is not finite."""
    NONFINITE_METRIC = 2
    """The metric's products, the solver or the direction met a number that is not finite."""
    NONFINITE_LOSS = 3
    """The loss on the search or ratio batch, before or after the step, is not finite."""
    NO_DECREASE = 4
    """A search that measures the loss found nothing lower."""
    REJECTED = 5
    """ρ fell below the optimizer's `reject`."""
    NO_DIRECTION = 6
    """The solver met curvature that is not positive at once and gave nothing; a larger λ mends it."""
    UNMEASURABLE = 7
    """The loss cannot resolve what the step does, promised or done. A fixed rate takes it, a search stays; λ falls."""

    @classmethod
    def name_of(cls, outcome: Any) -> str:
        """Return the printable name of a (concrete) `info.outcome`."""
        return cls(int(outcome)).name.lower().replace("_", " ")


class State(NamedTuple):
    """What the next step needs. Never holds a NaN or an infinity."""

    steps: Array
    """Steps asked for so far, refused ones included."""
    key: Array
    """The random key of the run; each step folds its count into it."""
    damping: Array
    """λ of the next step."""
    record: Tree
    """What the damping rule remembers."""
    last: Tree
    """The last step, where the damping rule looks at it again on the next batch; otherwise ()."""
    direction: Tree
    """What the direction remembers."""


class Info(NamedTuple):
    """What you may want to look at after a step. What nothing in the step needed is NaN, but for the KL."""

    loss: Array
    """The loss before the step, on the ratio batch, with the l2 term."""
    new_loss: Array
    """The loss after the step (as tried, if it was refused) on the ratio batch."""
    resolution: Array
    """The least change of that loss that rounding cannot feign."""
    rho: Array
    """Actual over predicted change of the loss; 1 where both are below the resolution."""
    stretch: Array
    """The last step's dᵀFd on this batch over that on its own; 0 where the rule does not look at it."""
    damping: Array
    """λ used in this step."""
    answer: Array
    """What λ does next and why, an `Answer`; print it with `ng.Answer.name_of`."""
    accepted: Array
    outcome: Array
    """What became of the step, an `Outcome`; print it with `ng.Outcome.name_of`."""
    step_size: Array
    """The coefficients z, one a row."""
    grad_norm: Array
    step_norm: Array
    """‖θ′ − θ‖ as tried."""
    kl: Array
    """½ dᵀFd: the KL divergence of the step on the metric's inputs, to second order. Where there is a metric it is
    always said: one forward-mode pass, unless the search has it already."""
    solver: SolverInfo | None
    """How the linear solve went; None where there is none."""
    context: Tree
    """The new context of a `Stateful` model; the old one if the new is not finite."""


class Data(NamedTuple):
    """The batches of one step; None takes the default named in `Optimizer.step`."""

    batch: Any
    metric_inputs: Tree = None
    metric_weights: Tree = None
    metric_targets: Tree = None
    search_batch: Any = None
    ratio_batch: Any = None
    context: Tree = None
    gradient: Tree = None
    learning_rate: Array | None = None


class Proposal(NamedTuple):
    """θ's neighborhood as one step sees it: the gradient and the rows to search along."""

    loss: Array
    gradient: Tree
    rows: Rows
    slopes: Array
    start: Start | None
    """The loss on the search batch, if the search measures it."""
    own: Start | None
    """The loss on the gradient batch, if ρ is measured there."""
    context: Tree
