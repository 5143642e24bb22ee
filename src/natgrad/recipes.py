"""The paper's methods, assembled: each is a few parts of the same step.

Every recipe also takes these and hands them to `Optimizer`, which says more about each:

    objective       a loss in place of the likelihood's        reject      refuse a step whose ρ is below this
    l2              adds (l2/2)‖θ‖² to the loss                max_norm    the longest step
    weight_decay    the part of θ that a step subtracts        trainable   which parameters move
    microbatch      examples in memory at a time               decayed     which of them l2 and weight_decay act on
    has_aux         whether the model returns something else after its outputs
"""

import warnings
from collections.abc import Callable
from typing import Any, Never, overload

import jax.numpy as jnp
from jax import Array

from natgrad.averaging import Averaged
from natgrad.custom import Loss
from natgrad.damping import Constant, Damping, LevenbergMarquardt
from natgrad.directions import (
    Conjugate,
    Descent,
    Direction,
    Fan,
    Gradient,
    Krylov,
    Natural,
    PolakRibiere,
    Preconditioned,
    Tonga,
    TruncatedNewton,
    WithLastStep,
)
from natgrad.directions.natural import Solver
from natgrad.kronecker import Kronecker
from natgrad.likelihood import Likelihood
from natgrad.metric import Fisher, GaussNewton, Metric
from natgrad.optimizer import Optimizer
from natgrad.precondition import Diagonal, Identity, Preconditioner
from natgrad.problem import Model
from natgrad.search import (
    Backtrack,
    FixedRate,
    LineSearch,
    Pick,
    PlaneSearch,
    QuadraticModel,
    Search,
    SubspaceBFGS,
)
from natgrad.solve import CG, Direct, TruncatedCG
from natgrad.tree import Tree

LEAST = 5e-3
"""KNCG's λ stops falling at this multiple of ‖g‖ / ‖θ‖; measurements chose it (docs/design/kncg.md)."""
SHRINK = 0.6
"""That multiple grows while steps fit their own batch, by this measure; the same measurements chose it."""
UNEVEN = 200.0
"""KNCG damps inputs in units of their own if they differ by this factor; the same measurements chose it."""
Rate = float | Callable[[Any], Any]
Objective = Callable[[Tree, Tree], Array]


def sgd(
    model: Model,
    likelihood: Likelihood,
    *,
    learning_rate: Rate | None = None,
    search: Search | None = None,
    damping: Damping | None = None,
    objective: Objective | None = None,
    l2: float | None = None,
    weight_decay: float | None = None,
    microbatch: int | None = None,
    reject: float | None = None,
    max_norm: float | None = None,
    trainable: Any = None,
    decayed: Any = None,
    has_aux: bool = False,
) -> Optimizer:
    """Stochastic gradient descent, θ ← θ − η g (η = 0.01 unless given), in the same frame as the rest.

    Args:
        model: `model(params, inputs) -> outputs`, without an output activation.
        likelihood: What the outputs mean.
        learning_rate: η, a float or an optax schedule (default 0.01). Not beside `search`.
        search: A rule for the step length, in place of a rate.
        damping: There is nothing to damp: a rule that measures ρ only refuses bad steps. Default `Constant(0.0)`.
        objective, l2, weight_decay, microbatch, reject, max_norm, trainable, decayed, has_aux: As in `Optimizer`.
    """
    common = objective, l2, weight_decay, microbatch, reject, max_norm, trainable, decayed, has_aux
    search = _rate_or_search(learning_rate, search, 0.01)
    damping = Constant(0.0) if damping is None else damping
    return Optimizer(model, likelihood, Gradient(), search, Fisher(), damping, *common)


def natural_gradient(
    model: Model,
    likelihood: Likelihood,
    *,
    learning_rate: Rate | None = None,
    search: Search | None = None,
    solver: Solver | None = None,
    preconditioner: Preconditioner | None = None,
    metric: Metric | None = None,
    damping: Damping | None = None,
    objective: Objective | None = None,
    l2: float | None = None,
    weight_decay: float | None = None,
    microbatch: int | None = None,
    reject: float | None = None,
    max_norm: float | None = None,
    trainable: Any = None,
    decayed: Any = None,
    has_aux: bool = False,
) -> Optimizer:
    """Natural gradient descent, θ ← θ − η (F + λI)⁻¹ g: NGD of the paper, and NGD-L with `search=ng.LineSearch()`.

    Args:
        model: `model(params, inputs) -> outputs`, without an output activation.
        likelihood: What the outputs mean.
        learning_rate: η, a float or an optax schedule (default 1). Not beside `search`.
        search: A rule for the step length, in place of a rate.
        solver: Default `CG(maxiter=20, rtol=1e-4)`, the paper's pseudo-code.
        preconditioner: The solver's preconditioner, such as `Jacobi()` or `Kronecker()`; default none.
        metric: Default `Fisher()`.
        damping: Default `LevenbergMarquardt(1.0)`.
        objective, l2, weight_decay, microbatch, reject, max_norm, trainable, decayed, has_aux: As in `Optimizer`.
    """
    common = objective, l2, weight_decay, microbatch, reject, max_norm, trainable, decayed, has_aux
    return Optimizer(
        model,
        likelihood,
        Natural(CG() if solver is None else solver, Identity() if preconditioner is None else preconditioner),
        _rate_or_search(learning_rate, search, 1.0),
        Fisher() if metric is None else metric,
        LevenbergMarquardt() if damping is None else damping,
        *common,
    )


@overload
def kncg(model: Model, likelihood: Likelihood, *, average: None, **rest: Any) -> Optimizer: ...


@overload
def kncg(model: Model, likelihood: Likelihood, *, average: float = 0.99, **rest: Any) -> Averaged: ...


def kncg(
    model: Model,
    likelihood: Likelihood,
    *,
    preconditioner: Preconditioner | None = None,
    metric: Metric | None = None,
    damping: Damping | None = None,
    floor: float | None = None,
    probe: int | None = 512,
    average: float | None = 0.99,
    objective: Objective | None = None,
    l2: float | None = None,
    weight_decay: float | None = None,
    microbatch: int | None = None,
    reject: float | None = 0.0,
    max_norm: float | None = None,
    trainable: Any = None,
    decayed: Any = None,
    has_aux: bool = False,
    **unknown: Never,
) -> Optimizer | Averaged:
    """KNCG: try it first on a new model, with minibatches of a hundred to a few thousand examples. No rate to tune.

    Kronecker-preconditioned natural conjugate gradient is NCG-Q with Kronecker factors. A step combines the
    preconditioned gradient and the last step, with coefficients from the exact quadratic model. It runs no solver:
    beside the gradient it costs two forward-mode passes, an evaluation of the loss and the preconditioner.

        opt = ng.kncg(model, likelihood)
        state = opt.init(params)
        params, state, info = opt.step(params, state, (inputs, targets))
        best = state.average

    Returns an `Optimizer` in `ng.Averaged`. Evaluate and keep `state.average`; training continues from `params`.

    Args:
        model: `model(params, inputs) -> outputs`, without an output activation.
        likelihood: What the outputs mean.
        preconditioner: Default `Kronecker(uneven=200)`, which damps inputs of very different scales in units of their
            own.
        metric: Default `Fisher()`.
        damping: Default: Levenberg–Marquardt from λ = 0.003, falling by 2% to 6% per step to 0.005 ‖g‖ / ‖θ‖. This
            bound grows while steps fit their own batch.
            `LevenbergMarquardt("calibrate", lower_by=0.98, least=0.005, shrink=0.6)` looks for its own first λ.
        floor: The smallest λ, which replaces that rule. Not beside `damping`.
        probe: The most examples of a batch that the metric, the factors and ρ use, different ones at every step. None
            uses them all.
        average: The decay of the average of the parameters, as in `ng.Averaged`; None returns the `Optimizer` itself.
        reject: Steps with a smaller ρ are refused; by default, steps that raise the loss of their own batch.
        objective, l2, weight_decay, microbatch, max_norm, trainable, decayed, has_aux: As in `Optimizer`.
        unknown: Nothing is accepted here; a learning rate gets a message of its own.
    """
    if {"learning_rate", "lr"} & unknown.keys():
        raise TypeError(
            "ng.kncg has no learning rate: a quadratic model chooses the step length. Change floor= instead, or bound "
            "the length by max_norm=; ng.natural_gradient takes a rate."
        )
    for name in unknown:
        raise TypeError(f"kncg() got an unexpected keyword argument {name!r}")
    if damping is not None and floor is not None:
        raise ValueError("Give damping= or floor=, not both: a damping has bounds of its own.")
    if damping is None:
        least, shrink = (LEAST, SHRINK) if floor is None else (0.0, None)
        floor = 1e-12 if floor is None else floor
        first = max(3e-3, floor) if isinstance(floor, (int, float)) else jnp.maximum(3e-3, floor)
        damping = LevenbergMarquardt(first, bounds=(floor, 1e12), lower_by=0.98, least=least, shrink=shrink)
    rows = WithLastStep(
        Preconditioned(Kronecker(uneven=UNEVEN) if preconditioner is None else preconditioner)
    )
    metric = Fisher() if metric is None else metric
    common = objective, l2, weight_decay, microbatch, reject, max_norm, trainable, decayed, has_aux
    opt = Optimizer(model, likelihood, rows, QuadraticModel(), metric, damping, *common, probe)
    return opt if average is None else Averaged(opt, average)


def fast(*arguments: Any, **options: Any) -> Optimizer:
    """Return `kncg` with the defaults it had under this name in natgrad 0.1, and warn."""
    warnings.warn(
        "ng.fast is now called ng.kncg: natgrad 0.3 drops the old name.", DeprecationWarning, stacklevel=2
    )
    return kncg(*arguments, **({"average": None} | with_former(options)))


def with_former(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `fast`, with the defaults of natgrad 0.1 for those that are not given."""
    former: dict[str, Any] = {"probe": None}
    if "damping" not in options:
        former["floor"] = 1e-4
    return former | options


def natural_conjugate_gradient(
    model: Model,
    likelihood: Likelihood,
    *,
    direction: Descent | None = None,
    beta: PolakRibiere | None = None,
    search: Search | None = None,
    metric: Metric | None = None,
    damping: Damping | None = None,
    objective: Objective | None = None,
    l2: float | None = None,
    weight_decay: float | None = None,
    microbatch: int | None = None,
    reject: float | None = None,
    max_norm: float | None = None,
    trainable: Any = None,
    decayed: Any = None,
    has_aux: bool = False,
) -> Optimizer:
    """Natural conjugate gradient: the natural gradient and the last step, combined.

    Three members of one family:

    * NCG-L (default), the paper's: θ ← θ − α n + β s, (α, β) by `ng.PlaneSearch()` or, as the paper did, by
      `ng.Cobyla()`.
    * NCG-F, `beta=ng.PolakRibiere()`: β by formula, then a line search. With `metric=ng.DiagonalFisher()` it is
      Gonzalez & Dorronsoro's.
    * NCG-Q, `direction=ng.Preconditioned(P)`: no solve and no probe. Both coefficients come from the quadratic model
      with the exact metric, by two JVPs.

    Args:
        model: `model(params, inputs) -> outputs`.
        likelihood: What the outputs mean.
        direction: `ng.Natural(solver)` or `ng.Preconditioned(preconditioner)`.
        beta: A formula for β; None lets the search find β.
        search: A search that replaces the member's own.
        metric: Default `Fisher()`.
        damping: Default `LevenbergMarquardt(3.0)`, the paper's start.
        objective, l2, weight_decay, microbatch, reject, max_norm, trainable, decayed, has_aux: As in `Optimizer`.
    """
    direction = Natural() if direction is None else direction
    if beta is not None:
        rows: Direction = Conjugate(direction, beta)
        default: Search = LineSearch()
    else:
        rows = WithLastStep(direction)
        default = QuadraticModel() if isinstance(direction, Preconditioned) else PlaneSearch()
    common = objective, l2, weight_decay, microbatch, reject, max_norm, trainable, decayed, has_aux
    return Optimizer(
        model,
        likelihood,
        rows,
        default if search is None else search,
        Fisher() if metric is None else metric,
        LevenbergMarquardt(3.0) if damping is None else damping,
        *common,
    )


def gauss_newton(
    model: Model,
    likelihood: Likelihood,
    *,
    solver: Direct | None = None,
    count: int = 33,
    ratio: float | None = 0.01,
    metric: Metric | None = None,
    objective: Objective | None = None,
    l2: float | None = None,
    weight_decay: float | None = None,
    microbatch: int | None = None,
    reject: float | None = None,
    max_norm: float | None = None,
    trainable: Any = None,
    decayed: Any = None,
    has_aux: bool = False,
) -> Optimizer:
    """Few parameters, many digits: Gauss–Newton steps for many λ from one decomposition, and the loss picks one.

    Use it for problems with a few thousand parameters or residuals whose targets the model can fit: physics-informed
    nets, curve fitting, calibration. Give every step the same, whole batch, or new points, if possible several times
    more residuals than parameters. Use float64. There is no rate, λ or schedule to set.

    The step forms the Jacobian and works in the smaller of parameter and residual space. If both are too large, it
    works in a Krylov space, which the metric's products span. The shapes decide which, and
    `info.solver.space` says it. A loss that is a sum of squares (`Gaussian`, a `Product` of them) is solved as least
    squares, to twice the digits that its normal equations have.

    The decomposition is LAPACK's. On a CPU that other processes use too, set OPENBLAS_NUM_THREADS=1 before Python
    starts: LAPACK's threads wait for one another.

    Args:
        model: `model(params, inputs) -> outputs`, without an output activation.
        likelihood: What the outputs mean; `ng.Likelihood.from_loss(…)` for a convex loss.
        solver: Default `Direct()`, whose `memory` bounds what a step may allocate.
        count: How many λ are tried per step.
        ratio: The longest step is taken whose ρ is at least this; None takes the lowest loss.
        metric: Default `Fisher()`, for a bare loss `GaussNewton()`.
        objective, l2, weight_decay, microbatch, reject, max_norm, trainable, decayed, has_aux: As in `Optimizer`.
    """
    common = objective, l2, weight_decay, microbatch, reject, max_norm, trainable, decayed, has_aux
    if metric is None:
        metric = GaussNewton() if isinstance(likelihood, Loss) else Fisher()
    rows = Fan(count=count, solver=Direct() if solver is None else solver)
    return Optimizer(model, likelihood, rows, Pick(ratio), metric, Constant(0.0), *common)


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
    objective: Objective | None = None,
    l2: float | None = None,
    weight_decay: float | None = None,
    microbatch: int | None = None,
    reject: float | None = None,
    max_norm: float | None = None,
    trainable: Any = None,
    decayed: Any = None,
    has_aux: bool = False,
) -> Optimizer:
    """Hessian-Free (Martens 2010) with his constants: natural gradient descent, and his rules around the solver.

    CG solves with the Gauss–Newton matrix, which is the Fisher metric for these likelihoods. It starts from 0.95 of
    its last solution, is preconditioned by (mean squared gradients + λ)^0.75, and ends by his progress rule. The
    search then goes back over the stored iterates while the loss falls, and applies Armijo. Give `step` the full data
    as the batch and a part of it as `metric_inputs=` and `ratio_batch=`. ρ is that of the step taken, after the
    Armijo factor.

    Args:
        model: `model(params, inputs) -> outputs`, without an output activation.
        likelihood: What the outputs mean.
        solver: Default `TruncatedCG()`: at most 250 iterations, stopped by their progress.
        preconditioner: Default `Diagonal(0.75)`.
        warm_start: The part of the last solution that CG starts from, or a schedule of it; None starts from 0.
        search: Default `Backtrack()`.
        metric: Default `GaussNewton()`.
        damping: Default `LevenbergMarquardt(45.0)`.
        objective, l2, weight_decay, microbatch, reject, max_norm, trainable, decayed, has_aux: As in `Optimizer`.
    """
    solver = TruncatedCG() if solver is None else solver
    if not isinstance(solver, TruncatedCG):
        raise ValueError("hessian_free backtracks over stored iterates: give solver=TruncatedCG(...).")
    preconditioner = Diagonal(0.75) if preconditioner is None else preconditioner
    common = objective, l2, weight_decay, microbatch, reject, max_norm, trainable, decayed, has_aux
    return Optimizer(
        model,
        likelihood,
        TruncatedNewton(Natural(solver, preconditioner, warm_start)),
        Backtrack() if search is None else search,
        GaussNewton() if metric is None else metric,
        LevenbergMarquardt(45.0) if damping is None else damping,
        *common,
    )


def krylov_subspace_descent(
    model: Model,
    likelihood: Likelihood,
    *,
    size: int = 20,
    last_step: bool = True,
    preconditioner: Preconditioner | None = None,
    search: Search | None = None,
    metric: Metric | None = None,
    objective: Objective | None = None,
    l2: float | None = None,
    weight_decay: float | None = None,
    microbatch: int | None = None,
    reject: float | None = None,
    max_norm: float | None = None,
    trainable: Any = None,
    decayed: Any = None,
    has_aux: bool = False,
) -> Optimizer:
    """Krylov Subspace Descent (Vinyals & Povey 2012): BFGS in span{g, Fg, …, F^{k−1}g, last step}, no damping.

    Give `step` a large batch for the gradient. Draw two parts of it anew for every step: one is `metric_inputs=`, the
    other `search_batch=`. The authors' preconditioner is `ng.Diagonal(1.0, floor=1e-4)`.

    Args:
        model: `model(params, inputs) -> outputs`, without an output activation.
        likelihood: What the outputs mean.
        size: k, the number of vectors from the gradient and the metric.
        last_step: Whether the last step is one more vector.
        preconditioner: Applied to the vectors; default none.
        search: Default `SubspaceBFGS(maxiter=size)`.
        metric: Default `GaussNewton()`.
        objective, l2, weight_decay, microbatch, reject, max_norm, trainable, decayed, has_aux: As in `Optimizer`.
    """
    common = objective, l2, weight_decay, microbatch, reject, max_norm, trainable, decayed, has_aux
    preconditioner = Identity() if preconditioner is None else preconditioner
    return Optimizer(
        model,
        likelihood,
        Krylov(size, last_step, preconditioner),
        SubspaceBFGS(maxiter=size) if search is None else search,
        GaussNewton() if metric is None else metric,
        Constant(0.0),
        *common,
    )


def tonga(
    model: Model,
    likelihood: Likelihood,
    *,
    learning_rate: Rate | None = None,
    search: Search | None = None,
    direction: Tonga | None = None,
    damping: Damping | None = None,
    objective: Objective | None = None,
    l2: float | None = None,
    weight_decay: float | None = None,
    microbatch: int | None = None,
    reject: float | None = None,
    max_norm: float | None = None,
    trainable: Any = None,
    decayed: Any = None,
    has_aux: bool = False,
) -> Optimizer:
    """TONGA (Le Roux, Manzagol & Bengio 2008): θ ← θ − η (C + λI)⁻¹ g, C the running covariance of the gradients.

    C is online and low-rank, `ng.directions.Tonga(rank=5, block=50, decay=0.995)`; λ = 1 and η = 0.01 unless given.
    The batch form is `ng.natural_gradient(metric=ng.EmpiricalFisher(centered=True))`.

    Args:
        model: `model(params, inputs) -> outputs`, without an output activation.
        likelihood: What the outputs mean.
        learning_rate: η, a float or an optax schedule (default 0.01). Not beside `search`.
        search: A rule for the step length, in place of a rate.
        direction: Default `Tonga()`, which holds rank, block and decay.
        damping: Default `Constant(1.0)`.
        objective, l2, weight_decay, microbatch, reject, max_norm, trainable, decayed, has_aux: As in `Optimizer`.
    """
    common = objective, l2, weight_decay, microbatch, reject, max_norm, trainable, decayed, has_aux
    return Optimizer(
        model,
        likelihood,
        Tonga() if direction is None else direction,
        _rate_or_search(learning_rate, search, 0.01),
        Fisher(),
        Constant(1.0) if damping is None else damping,
        *common,
    )


def _rate_or_search(learning_rate: Rate | None, search: Search | None, default: float) -> Search:
    if search is None:
        return FixedRate(default if learning_rate is None else learning_rate)
    if learning_rate is not None:
        raise ValueError(
            f"Give learning_rate= or search={type(search).__name__}, not both: each sets the step length."
        )
    return search
