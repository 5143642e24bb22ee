"""The two methods of figure 2, each beside its constants. Their rates are where the matching starts."""

from typing import Any, Literal

import natgrad as ng
from natgrad_paper.training.problem import Method, Problem
from natgrad_paper.training.settings import Count, NonNegative, Positive, Section


class Sgd(Section):
    """Stochastic gradient descent."""

    rate: Positive = 1.0
    """The rate at which the matching starts; the paper's is 0.1, over 64 times as many updates."""


def sgd(problem: Problem, settings: Any) -> ng.Optimizer:
    """Return stochastic gradient descent."""
    return ng.sgd(problem.model, problem.likelihood, learning_rate=settings.sgd.rate)


class Ngd(Section):
    """Natural gradient descent, the metric on the gradient's own batch."""

    rate: Positive = 2.0
    """The rate at which the matching starts; the paper's is 0.2."""
    damping: Positive = 3.0
    """λ, which stays as it is."""
    maxiter: Count = 5
    """Solver iterations at most."""
    solver: Literal["cg", "minres-qlp"] = "cg"
    """The paper's is minres-qlp."""
    rtol: NonNegative = 1e-4
    """The solver stops where the residual is this small beside the right-hand side."""


def ngd(problem: Problem, settings: Any) -> ng.Optimizer:
    """Return natural gradient descent with constant damping."""
    own = settings.ngd
    return ng.natural_gradient(
        problem.model,
        problem.likelihood,
        learning_rate=own.rate,
        solver={"cg": ng.CG, "minres-qlp": ng.MinresQLP}[own.solver](maxiter=own.maxiter, rtol=own.rtol),
        damping=ng.Constant(own.damping),
    )


METHODS = (
    Method(
        "sgd", "SGD", "#D55E00", sgd, settings=Sgd, reads=("stream",), steps_per_call=lambda own: own.stream.block,
        about="minibatches, constant rate, no momentum",
    ),
    Method(
        "ngd", "NGD", "#0072B2", ngd, settings=Ngd, reads=("stream",), steps_per_call=lambda own: own.stream.block,
        about="the metric on the gradient's own batch, constant rate and damping",
    ),
)  # fmt: skip
