"""What a step takes, what it passes on to the next one, and what it reports: plain tuples of arrays."""

from typing import Any, NamedTuple

from jax import Array

from natgrad.directions import SolverInfo
from natgrad.part import Named
from natgrad.tree import Tree


class Outcome(Named):
    """What became of a step. If `info.accepted` is false, the parameters are unchanged to the bit."""

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
    """The solver met curvature that is not positive in its first iteration and returned nothing; a larger λ helps."""
    UNMEASURABLE = 7
    """The loss can resolve neither the promised nor the actual change. A fixed rate takes the step, a search does
    not; λ falls."""


class Batches(NamedTuple):
    """The batches of one step, each `(inputs, targets)` or `(inputs, targets, weights)`; None takes the default."""

    gradient: Any
    """Where the gradient is taken."""
    metric: Any = None
    """Where the metric is taken: inputs alone, or a batch whose targets are None unless the metric is defined by them.
    A tuple with the structure of the gradient's inputs is inputs alone. Default: the gradient's."""
    search: Any = None
    """Where the search probes the loss. Default: the gradient's."""
    ratio: Any = None
    """Where ρ is measured. Default: the gradient's, wherever the search looks."""


class Data(NamedTuple):
    """Everything one step is given beside parameters and state."""

    batches: Batches
    """Each batch has targets and weights, or None in their place. A ratio of () means the search's batch."""
    rest: Tree = None
    """The parameters that are not trained."""
    context: Tree = None
    gradient: Tree = None
    """A gradient computed elsewhere."""
    rate: Array | None = None


class State(NamedTuple):
    """What the next step needs. It never holds a NaN, an infinity or an empty array: any tool can save it."""

    steps: Array
    """Steps asked for so far, refused ones included."""
    key: Array
    """The data of the run's random key; each step folds its count into it."""
    damping: Array
    """λ of the next step."""
    record: Tree
    """What the damping rule remembers."""
    last: Tree
    """The last step, if the direction or the damping rule uses it; otherwise ()."""
    direction: Tree
    """What the direction remembers."""


class Info(NamedTuple):
    """What you may want to look at after a step. A number that nothing in the step needed is NaN."""

    loss: Array
    """The loss before the step, on the gradient batch, with the l2 term."""
    ratio_loss: Array
    """The loss before the step, on the ratio batch, with the l2 term."""
    new_loss: Array
    """The loss after the step (as tried, if it was refused) on the ratio batch."""
    resolution: Array
    """The least change of that loss that cannot be mere rounding. What sums that cancel add to it is measured only
    where the step promises less than 1e4 times the rest."""
    rho: Array
    """Actual over predicted change of the loss; 1 if both are below the resolution."""
    stretch: Array
    """dᵀFd of the last step d on this batch, divided by dᵀFd on its own batch; 0 if the rule does not use it."""
    damping: Array
    """λ used in this step; if a search chooses λ, its choice."""
    answer: Array
    """What λ does next and why, an `Answer`; print it with `ng.Answer.name_of`."""
    accepted: Array
    outcome: Array
    """What became of the step, an `Outcome`; print it with `ng.Outcome.name_of`."""
    step_size: Array
    """The coefficients z, one per row."""
    grad_norm: Array
    step_norm: Array
    """‖θ′ − θ‖ as tried."""
    kl: Array
    """½ dᵀFd: the KL divergence of the step on the metric's inputs, to second order. A step with a metric always
    computes it, by one forward-mode pass unless the search has it already."""
    solver: SolverInfo | None
    """How the linear solve went; None where there is none."""
    context: Tree
    """The new context of a `Stateful` model; the old one if the new is not finite."""
    aux: Tree = None
    """What the model returned beside its outputs, with `has_aux=True`."""
