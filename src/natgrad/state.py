"""What a step is given, what it carries on, and what it shows: plain tuples of arrays."""

from typing import Any, NamedTuple

from jax import Array

from natgrad.directions import SolverInfo
from natgrad.part import Named
from natgrad.tree import Tree


class Outcome(Named):
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


class Batches(NamedTuple):
    """The batches of one step, each `(inputs, targets)` or `(inputs, targets, weights)`; None takes the default."""

    gradient: Any
    """Where the gradient is taken."""
    metric: Any = None
    """Where the metric is taken: inputs alone, or a batch whose targets are None unless the metric is defined by them.
    Default: the gradient's."""
    search: Any = None
    """Where the search probes the loss. Default: the gradient's."""
    ratio: Any = None
    """Where ρ is measured. Default: the gradient's, wherever the search looks."""


class Data(NamedTuple):
    """Everything one step is given beside parameters and state."""

    batches: Batches
    """Each with targets and weights, or None in their places."""
    rest: Tree = None
    """The parameters that are not trained."""
    context: Tree = None
    gradient: Tree = None
    """A gradient computed elsewhere."""
    rate: Array | None = None


class State(NamedTuple):
    """What the next step needs. Never holds a NaN or an infinity, nor an empty array: any tool can save it."""

    steps: Array
    """Steps asked for so far, refused ones included."""
    key: Array
    """The data of the run's random key; each step folds its count into it."""
    damping: Array
    """λ of the next step."""
    record: Tree
    """What the damping rule remembers."""
    last: Tree
    """The last step, where the direction or the damping rule looks at it; otherwise ()."""
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
    """The least change of that loss that rounding cannot feign."""
    rho: Array
    """Actual over predicted change of the loss; 1 where both are below the resolution."""
    stretch: Array
    """The last step's dᵀFd on this batch over that on its own; 0 where the rule does not look at it."""
    damping: Array
    """λ used in this step; the one chosen, where a search chooses it."""
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
    tells it: one forward-mode pass, unless the search has it already."""
    solver: SolverInfo | None
    """How the linear solve went; None where there is none."""
    context: Tree
    """The new context of a `Stateful` model; the old one if the new is not finite."""
    aux: Tree = None
    """What the model returned beside its outputs, with `has_aux=True`."""
