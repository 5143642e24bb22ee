"""The paper's methods, assembled: each is a few parts of the same step."""

from collections.abc import Callable
from typing import Any

from natgrad.damping import Constant, Damping, LevenbergMarquardt
from natgrad.directions import (
    Conjugate,
    Descent,
    Direction,
    Gradient,
    Krylov,
    Natural,
    PolakRibiere,
    Preconditioned,
    Tonga,
    TruncatedNewton,
    WithLastStep,
)
from natgrad.kronecker import Kronecker
from natgrad.likelihood import Likelihood
from natgrad.metric import Fisher, GaussNewton, Metric
from natgrad.optimizer import Optimizer
from natgrad.precondition import Diagonal, Identity, Preconditioner
from natgrad.problem import Model
from natgrad.search import (
    Armijo,
    Backtrack,
    FixedRate,
    LineSearch,
    PlaneSearch,
    QuadraticModel,
    Search,
    SubspaceBFGS,
)
from natgrad.solve import CG, TruncatedCG

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

    `options` are `Optimizer`'s: objective, l2, microbatch, reject, max_norm, trainable, damping.
    """
    return Optimizer(model, likelihood, Gradient(), _rate_or_search(learning_rate, search, 0.01), **options)


def natural_gradient(
    model: Model,
    likelihood: Likelihood,
    *,
    learning_rate: Rate | None = None,
    search: Search | None = None,
    solver: Any = None,
    preconditioner: Preconditioner | None = None,
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
        preconditioner: Of the solver, such as `Jacobi()` or `Kronecker()`; default none.
        metric: Default `Fisher()`.
        damping: Default `LevenbergMarquardt(1.0)`.
        options: `Optimizer`'s: objective, l2, microbatch, reject, max_norm, trainable.
    """
    return Optimizer(
        model,
        likelihood,
        Natural(CG() if solver is None else solver, Identity() if preconditioner is None else preconditioner),
        _rate_or_search(learning_rate, search, 1.0),
        Fisher() if metric is None else metric,
        LevenbergMarquardt() if damping is None else damping,
        **options,
    )


def fast(
    model: Model,
    likelihood: Likelihood,
    *,
    preconditioner: Preconditioner | None = None,
    damping: Damping | None = None,
    floor: float | None = None,
    reject: float | None = 0.0,
    **options: Any,
) -> Optimizer:
    """What to try first on a new model, with minibatches of a hundred to a few thousand examples: no rate to tune.

    NCG-Q with Kronecker factors: the preconditioned gradient and the last step, combined by the quadratic model with
    the exact metric. There is no solver in a step: beside the gradient, two forward-mode passes, a look at the loss and
    the preconditioner. Three things get more out of it: batches of 500 to 1000 examples; metric and ρ on a hundred or
    two of them, `step(…, metric_inputs=x[:125], ratio_batch=(x[:125], t[:125]))`; `ng.Averaged`.

    Args:
        model: `model(params, inputs) -> outputs`, without an output activation.
        likelihood: What the outputs mean.
        preconditioner: Default `Kronecker()`.
        damping: Default: Levenberg–Marquardt from λ = 0.003, falling by 2% to 6% per step, never below `floor`.
            `LevenbergMarquardt("calibrate", bounds=(1e-4, 1e8), lower_by=0.98)` looks for its own first λ.
        floor: Default 1e-4. The setting to change first: larger for smaller batches, or where training is unsteady.
            Not beside `damping`.
        reject: Steps with a smaller ρ are refused: by default those that raise the loss of their own batch.
        options: `Optimizer`'s: objective, l2, microbatch, max_norm, trainable, metric.
    """
    if damping is not None and floor is not None:
        raise ValueError("Give damping= or floor=, not both: a damping has bounds of its own.")
    if damping is None:
        floor = 1e-4 if floor is None else floor
        damping = LevenbergMarquardt(max(3e-3, floor), bounds=(floor, 1e12), lower_by=0.98)
    preconditioner = Kronecker() if preconditioner is None else preconditioner
    return natural_conjugate_gradient(
        model, likelihood, direction=Preconditioned(preconditioner), damping=damping, reject=reject, **options
    )


def natural_conjugate_gradient(
    model: Model,
    likelihood: Likelihood,
    *,
    direction: Descent | None = None,
    beta: PolakRibiere | None = None,
    search: Search | None = None,
    metric: Metric | None = None,
    damping: Damping | None = None,
    **options: Any,
) -> Optimizer:
    """Natural conjugate gradient: the natural gradient and the last step, combined.

    Three members of one family:

    * NCG-L (default), the paper's: θ ← θ − α n + β s, (α, β) by `ng.PlaneSearch()` or, as the paper did, by
      `ng.Cobyla()`.
    * NCG-F, `beta=ng.PolakRibiere()`: β by formula, then a line search. With `metric=ng.DiagonalFisher()` it is
      Gonzalez & Dorronsoro's.
    * NCG-Q, `direction=ng.Preconditioned(P)`: no solve and no probe; both coefficients from the quadratic model
      with the exact metric, two JVPs.

    Args:
        model: `model(params, inputs) -> outputs`.
        likelihood: What the outputs mean.
        direction: `ng.Natural(solver)` or `ng.Preconditioned(preconditioner)`.
        beta: A formula for β; None finds it by search.
        search: In place of the member's own.
        metric: Default `Fisher()`.
        damping: Default `LevenbergMarquardt(3.0)`, the paper's start.
        options: `Optimizer`'s: objective, l2, microbatch, reject, max_norm, trainable.
    """
    direction = Natural() if direction is None else direction
    if beta is not None:
        rows: Direction = Conjugate(direction, beta)
        default: Search = LineSearch()
    else:
        rows = WithLastStep(direction)
        default = QuadraticModel() if isinstance(direction, Preconditioned) else PlaneSearch()
    return Optimizer(
        model,
        likelihood,
        rows,
        default if search is None else search,
        Fisher() if metric is None else metric,
        LevenbergMarquardt(3.0) if damping is None else damping,
        **options,
    )


def hessian_free(
    model: Model,
    likelihood: Likelihood,
    *,
    solver: TruncatedCG | None = None,
    preconditioner: Preconditioner | None = None,
    warm_start: Rate | None = 0.95,
    search: Search | None = None,
    metric: Metric | None = None,
    damping: Damping | None = None,
    **options: Any,
) -> Optimizer:
    """Hessian-Free (Martens 2010) with his constants: natural gradient descent, and his habits around the solver.

    CG on the Gauss–Newton matrix (the Fisher metric, for these likelihoods) to his progress stop, from 0.95 of
    its last solution, preconditioned by (mean squared gradients + λ)^0.75; then back over the stored iterates
    while the loss falls, then Armijo. Give `step` the full data as the batch and a chunk of it as
    `metric_inputs=` and `ratio_batch=`. ρ is that of the step taken, after the Armijo factor.
    """
    solver = TruncatedCG() if solver is None else solver
    if not isinstance(solver, TruncatedCG):
        raise ValueError("hessian_free backtracks over stored iterates: give solver=TruncatedCG(...).")
    preconditioner = Diagonal(0.75) if preconditioner is None else preconditioner
    return Optimizer(
        model,
        likelihood,
        TruncatedNewton(Natural(solver, preconditioner, warm_start)),
        Backtrack() if search is None else search,
        GaussNewton() if metric is None else metric,
        LevenbergMarquardt(45.0) if damping is None else damping,
        **options,
    )


def stochastic_hessian_free(
    model: Model, likelihood: Likelihood, *, steps_per_epoch: int, iterations: int = 5, **options: Any
) -> Optimizer:
    """Hessian-Free for minibatches, after Kiros (2013).

    A few CG iterations per step; warm start 0.5, growing by 1% per epoch to 0.99; the first trial length falls by
    0.2% per epoch. λ starts at 1 and falls by 1% to 3% per step, never below 0.01: a warm start runs away along flat
    directions that nothing damps. Give `step` a minibatch and a tenth of it as `metric_inputs=`.
    """

    import optax  # here, because it takes as long to import as the rest of natgrad

    def warm_start(step: Any) -> Any:
        return optax.exponential_decay(0.5, steps_per_epoch, 1.01, staircase=True, end_value=0.99)(step)

    settings: dict[str, Any] = {
        "solver": TruncatedCG(iterations, progress=None),
        "warm_start": warm_start,
        "search": Backtrack(
            Armijo(initial=optax.exponential_decay(1.0, steps_per_epoch, 0.998, staircase=True))
        ),
        "damping": LevenbergMarquardt(1.0, bounds=(1e-2, 1e12), lower_by=0.99),
    }
    return hessian_free(model, likelihood, **(settings | options))


def krylov_subspace_descent(
    model: Model,
    likelihood: Likelihood,
    *,
    size: int = 20,
    last_step: bool = True,
    preconditioner: Preconditioner | None = None,
    search: Search | None = None,
    metric: Metric | None = None,
    **options: Any,
) -> Optimizer:
    """Krylov Subspace Descent (Vinyals & Povey 2012): BFGS in span{g, Fg, …, F^{k−1}g, last step}, no damping.

    Give `step` a large batch for the gradient, and a part of it each as `metric_inputs=` and `search_batch=`,
    drawn anew every step. `preconditioner=ng.Diagonal(1.0, floor=1e-4)` is the authors'.
    """
    preconditioner = Identity() if preconditioner is None else preconditioner
    return Optimizer(
        model,
        likelihood,
        Krylov(size, last_step, preconditioner),
        SubspaceBFGS(maxiter=size) if search is None else search,
        GaussNewton() if metric is None else metric,
        Constant(0.0),
        **options,
    )


def tonga(
    model: Model,
    likelihood: Likelihood,
    *,
    learning_rate: Rate | None = None,
    search: Search | None = None,
    direction: Tonga | None = None,
    damping: Damping | None = None,
    **options: Any,
) -> Optimizer:
    """TONGA (Le Roux, Manzagol & Bengio 2008): θ ← θ − η (C + λI)⁻¹ g, C the running covariance of the gradients.

    Online and low-rank, `ng.Tonga(rank=5, block=50, decay=0.995)`; λ = 1 and η = 0.01 unless given. The batch form
    is `ng.natural_gradient(metric=ng.EmpiricalFisher(centered=True))`.
    """
    return Optimizer(
        model,
        likelihood,
        Tonga() if direction is None else direction,
        _rate_or_search(learning_rate, search, 0.01),
        Fisher(),
        Constant(1.0) if damping is None else damping,
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
