"""The paper's methods, assembled: each is a few parts of the same step."""

from collections.abc import Callable
from typing import Any

from natgrad.damping import Damping, LevenbergMarquardt
from natgrad.directions import Gradient, Natural
from natgrad.likelihood import Likelihood
from natgrad.metric import Fisher, Metric
from natgrad.optimizer import Optimizer
from natgrad.problem import Model
from natgrad.search import FixedRate, Search
from natgrad.solve import CG

Rate = float | Callable[[Any], Any]


def sgd(
    model: Model,
    likelihood: Likelihood,
    *,
    learning_rate: Rate | None = None,
    search: Search | None = None,
    **options: Any,
) -> Optimizer:
    """Stochastic gradient descent, θ ← θ − η g (η = 0.01 unless given), in the same frame as the rest.

    `options` are `Optimizer`'s: objective, l2, microbatch, reject, max_norm, damping.
    """
    return Optimizer(model, likelihood, Gradient(), _rate_or_search(learning_rate, search, 0.01), **options)


def natural_gradient(
    model: Model,
    likelihood: Likelihood,
    *,
    learning_rate: Rate | None = None,
    search: Search | None = None,
    solver: Any = None,
    metric: Metric | None = None,
    damping: Damping | None = None,
    **options: Any,
) -> Optimizer:
    """Natural gradient descent, θ ← θ − η (F + λI)⁻¹ g: NGD of the paper, and NGD-L with `search=ng.LineSearch()`.

    Args:
        model: `model(params, inputs) -> outputs`, without an output activation.
        likelihood: What the outputs mean.
        learning_rate: η, a float or an optax schedule (default 1). Not beside `search`.
        search: A rule for the step length, in place of a rate.
        solver: Default `CG(maxiter=20, rtol=1e-4)`, the paper's pseudo-code.
        metric: Default `Fisher()`.
        damping: Default `LevenbergMarquardt(1.0)`.
        options: `Optimizer`'s: objective, l2, microbatch, reject, max_norm.
    """
    return Optimizer(
        model,
        likelihood,
        Natural(CG() if solver is None else solver),
        _rate_or_search(learning_rate, search, 1.0),
        Fisher() if metric is None else metric,
        LevenbergMarquardt() if damping is None else damping,
        **options,
    )


def _rate_or_search(learning_rate: Rate | None, search: Search | None, default: float) -> Search:
    if search is None:
        return FixedRate(default if learning_rate is None else learning_rate)
    if learning_rate is not None:
        raise ValueError(
            f"Give learning_rate= or search={type(search).__name__}, not both: each sets the step length."
        )
    return search
