"""The methods of figure 3, each beside its constants. A new one is an entry of `METHODS`, with a `Section` if needed.

The defaults of a section are the constants of the preset `small`; presets and `--set` change them by its name.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from pydantic import model_validator

import natgrad as ng
from natgrad_paper.training import baselines
from natgrad_paper.training.batches import Batches, FullBatch, Growing, Minibatch, Others
from natgrad_paper.training.problem import Method, Problem
from natgrad_paper.training.settings import Count, Decay, NonNegative, Positive, Section, Size, unfit

Build = Callable[[Problem, Any], Any]
NATURAL = ("solver", "damping")
"""Sections that all natural methods share."""
DIAGONAL = ng.DiagonalFisher(blocks=20)


class Solver(Section):
    """The linear solver of the paper's methods."""

    name: Literal["cg", "minres-qlp"] = "cg"
    """The paper's is minres-qlp."""
    rtol: NonNegative = 1e-4
    """It stops where the residual is this small beside the right-hand side."""

    def limited(self, maxiter: int) -> ng.CG | ng.MinresQLP:
        """Return the solver, with at most `maxiter` iterations."""
        return {"cg": ng.CG, "minres-qlp": ng.MinresQLP}[self.name](maxiter=maxiter, rtol=self.rtol)


class Damping(Section):
    """Levenberg–Marquardt: where λ starts, and the model of the change of the loss in its ratio."""

    initial: Positive | None = None
    """The first λ; the paper's is 3. Without it, the first step looks for a λ that suits the loss."""
    reduction: Literal["linear", "quadratic"] = "quadratic"
    """The paper's is linear. After an exact search the linear ratio is ½ whatever λ is, and λ would never move."""

    @property
    def rule(self) -> ng.LevenbergMarquardt:
        """The rule that moves λ."""
        return ng.LevenbergMarquardt(self.initial or "calibrate", reduction=self.reduction)


class Sgd(Section):
    """Stochastic gradient descent, with a constant rate and no momentum."""

    batch: Count = 100
    """Cases per step."""
    rate: Positive = 0.01
    """The learning rate."""
    steps_per_call: Size = 20
    """Most steps in one call of the compiled loop, so that Python's overhead is not charged to short steps."""


class Ngd(Section):
    """Natural gradient on minibatches."""

    batch: Count = 500
    """The paper's is 5000 in the text, 1000 in the caption of figure 3."""
    metric_batch: Count = 500
    """Cases of the metric, if they are not the gradient's own."""
    rate: Positive = 1.0
    """The learning rate."""
    maxiter: Size = 6
    """Solver iterations at most."""


def ngd(**parts: Any) -> Build:
    """Return a builder of natural gradient on minibatches: with these parts, and a fixed rate unless they search."""

    def build(problem: Problem, own: Any) -> ng.Optimizer:
        rate = {} if "search" in parts else {"learning_rate": own.ngd.rate}
        given = {"solver": own.solver.limited(own.ngd.maxiter), "damping": own.damping.rule, **rate, **parts}
        return ng.natural_gradient(problem.model, problem.likelihood, **given)

    return build


def own_batch(own: Any) -> Batches:
    """Return gradient and metric on different minibatches."""
    return Batches(Minibatch(own.ngd.batch), Others(own.ngd.metric_batch))


def same_batch(own: Any) -> Batches:
    """Return gradient and metric on the same minibatch."""
    return Batches(Minibatch(own.ngd.batch))


def on_minibatches(
    name: str, label: str, color: str, build: Build, batches: Callable[[Any], Batches], about: str
) -> Method:
    """Return a method with the constants of natural gradient on minibatches."""
    return Method(name, label, color, build, batches, Ngd, "ngd", NATURAL, about=about)


class Full(Section):
    """Natural gradient in batch mode: gradient, metric and search on all cases."""

    maxiter: Size = 10
    """Solver iterations at most."""
    preconditioner: Literal["none", "kronecker"] = "kronecker"
    """The solver's preconditioner; the paper has none. With Kronecker factors, 50 iterations replace its 250."""


def natural(own: Any, metric: ng.DiagonalFisher | None = None) -> ng.Natural:
    """Return the natural gradient in batch mode. A diagonal metric has no use for Kronecker factors."""
    bare = own.full.preconditioner == "none" or metric is not None
    return ng.Natural(own.solver.limited(own.full.maxiter), ng.Identity() if bare else ng.Kronecker())


def searched(problem: Problem, own: Any) -> ng.Optimizer:
    """Return natural gradient with a line search."""
    way = natural(own)
    given = {"solver": way.solver, "preconditioner": way.preconditioner, "damping": own.damping.rule}
    return ng.natural_gradient(problem.model, problem.likelihood, search=ng.LineSearch(), **given)


def conjugate(**parts: Any) -> Build:
    """Return a builder of natural conjugate gradient in batch mode, with these parts."""

    def build(problem: Problem, own: Any) -> ng.Optimizer:
        given = {"direction": natural(own, parts.get("metric")), "damping": own.damping.rule, **parts}
        return ng.natural_conjugate_gradient(problem.model, problem.likelihood, **given)

    return build


def everything(own: Any) -> Batches:
    """Return all cases in every step."""
    return Batches(FullBatch())


def in_batch_mode(
    name: str, label: str, color: str, build: Build, about: str, on_host: bool = False
) -> Method:
    """Return a method with the constants of natural gradient in batch mode."""
    return Method(name, label, color, build, everything, Full, "full", NATURAL, about=about, on_host=on_host)


def ncg_q(problem: Problem, own: Any) -> ng.Optimizer:
    """Return conjugate gradient from the quadratic model; λ by the quadratic ratio; no step that raises the loss."""
    direction = ng.Preconditioned(ng.Jacobi(blocks=20))
    damping = ng.LevenbergMarquardt(own.damping.initial or "calibrate")
    return ng.natural_conjugate_gradient(
        problem.model, problem.likelihood, direction=direction, damping=damping, reject=0.0
    )


class Kncg(Section):
    """KNCG with the defaults of the library, on minibatches that grow."""

    batch: Count = 500
    """Cases in a late step."""
    first: Count = 125
    """Cases in an early step: they double every `double` steps."""
    double: Count = 150
    """Steps until batches have doubled."""
    probe: Count = 512
    """The most of these cases that the metric and ρ use."""
    average: Decay = 0.99
    """The decay of the average that is judged, over about a tenth of the steps, at most 100; 0 for none."""

    @model_validator(mode="after")
    def _fits(self) -> "Kncg":
        if self.first > self.batch:
            unfit("first", f"at most batch = {self.batch}", self.first)
        return self


def kncg(problem: Problem, own: Any) -> ng.Averaged:
    """Return KNCG."""
    return ng.kncg(problem.model, problem.likelihood, probe=own.kncg.probe, average=own.kncg.average)


def growing(own: Any) -> Batches:
    """Return batches that grow."""
    return Batches(Growing(own.kncg.first, own.kncg.batch, own.kncg.double))


class HessianFree(Section):
    """Martens' Hessian-Free: gradient and search on all cases, curvature and ratio on a part of them."""

    maxiter: Size = 30
    """Solver iterations at most."""
    part: Count = 1000
    """Cases of the curvature and of the ratio."""
    damping: Positive = 45.0
    """The first λ."""


def hessian_free(**parts: Any) -> Build:
    """Return a builder of Martens' Hessian-Free, with these parts."""

    def build(problem: Problem, own: Any) -> ng.Optimizer:
        solver, damping = ng.TruncatedCG(own.hf.maxiter), ng.LevenbergMarquardt(own.hf.damping)
        return ng.hessian_free(problem.model, problem.likelihood, solver=solver, damping=damping, **parts)

    return build


class Ksd(Section):
    """Krylov Subspace Descent: gradient on all cases, curvature and search each on a part of them."""

    size: Size = 20
    """The size of the subspace, without the last step."""
    part: Count = 500
    """Cases of the curvature, and as many others of the search."""


def krylov(name: str, label: str, color: str, last_step: bool, about: str) -> Method:
    """Return Krylov Subspace Descent, with or without the last step in its space."""

    def build(problem: Problem, own: Any) -> ng.Optimizer:
        options = {"size": own.ksd.size, "last_step": last_step}
        return ng.krylov_subspace_descent(problem.model, problem.likelihood, **options)

    def batches(own: Any) -> Batches:
        return Batches(FullBatch(), metric=Minibatch(own.ksd.part), search=Others(own.ksd.part))

    return Method(name, label, color, build, batches, Ksd, "ksd", about=about)


class Tonga(Section):
    """TONGA on minibatches."""

    batch: Count = 100
    """Cases per step."""
    rate: Positive = 0.01
    """The learning rate."""
    damping: Positive = 1.0
    """λ, which stays as it is."""
    steps_per_call: Size = 20
    """Most steps in one call of the compiled loop."""


def tonga(problem: Problem, own: Any) -> ng.Optimizer:
    """Return TONGA."""
    damping = ng.Constant(own.tonga.damping)
    return ng.tonga(problem.model, problem.likelihood, learning_rate=own.tonga.rate, damping=damping)


class Nesterov(Section):
    """Nesterov momentum; rate and batch are tuned on Curves, and nowhere else."""

    batch: Count = 100
    """Cases per step."""
    rate: Positive = 0.008
    """The learning rate."""
    momentum: Decay = 0.999
    """Where the schedule of momentum ends."""
    steps_per_call: Size = 20
    """Most steps in one call of the compiled loop."""


class Adam(Section):
    """Adam; rate and batch are tuned on Curves, and nowhere else."""

    batch: Count = 200
    """Cases per step."""
    rate: Positive = 0.003
    """The learning rate."""
    steps_per_call: Size = 20
    """Most steps in one call of the compiled loop."""


class Lbfgs(Section):
    """L-BFGS in batch mode."""

    memory: Size = 10
    """Steps that it remembers, with the change of the gradient."""


def first_order(
    name: str, label: str, color: str, build: Build, settings: type[Section], about: str
) -> Method:
    """Return a method of short steps on minibatches; its section has `batch` and `steps_per_call`."""
    return Method(
        name, label, color, build, lambda own: Batches(Minibatch(getattr(own, name).batch)), settings,
        steps_per_call=lambda own: getattr(own, name).steps_per_call, about=about,
    )  # fmt: skip


KNCG = Method(
    "kncg", "KNCG", "#D55E00", kncg, growing, Kncg,
    about="growing minibatches, Kronecker preconditioner, coefficients from the quadratic model, averaged",
)  # fmt: skip
NESTEROV = first_order(
    "nesterov", "Nesterov momentum", "#332288",
    lambda problem, own: baselines.nesterov(problem, own.nesterov.rate, own.nesterov.momentum), Nesterov,
    "minibatches, rate and batch tuned (optax)",
)  # fmt: skip
ADAM = first_order(
    "adam", "Adam", "#117733", lambda problem, own: baselines.adam(problem, own.adam.rate), Adam,
    "minibatches, rate and batch tuned (optax)",
)  # fmt: skip
LBFGS = Method(
    "lbfgs", "L-BFGS", "#7F7F7F", lambda problem, own: baselines.lbfgs(problem, own.lbfgs.memory), everything, Lbfgs,
    about="all cases in every step, zoom line search (optax)",
)  # fmt: skip
# Colours of Okabe and Ito, and of Tol, which colour-blind readers can tell apart. The paper's methods come first.
METHODS = (
    first_order(
        "sgd", "SGD", "#000000",
        lambda problem, own: ng.sgd(problem.model, problem.likelihood, learning_rate=own.sgd.rate), Sgd,
        "minibatches, constant rate, no momentum",
    ),
    on_minibatches(
        "ngd", "NGD", "#0072B2", ngd(), own_batch, "gradient and metric on different minibatches, fixed rate"
    ),
    on_minibatches(
        "ngd-same", "NGD, same batch", "#56B4E9", ngd(), same_batch,
        "the control: gradient and metric on the same minibatch, fixed rate",
    ),
    in_batch_mode("ngd-l", "NGD-L", "#E69F00", searched, "all cases in every step, line search"),
    in_batch_mode(
        "ncg-l", "NCG-L", "#009E73", conjugate(), "all cases, natural gradient and last step, searched together"
    ),
    in_batch_mode(
        "ncg-f", "NCG-F", "#CC79A7", conjugate(beta=ng.PolakRibiere()),
        "all cases, Polak-Ribière's formula, line search",
    ),
    Method(
        "ncg-q", "NCG-Q", "#DDCC77", ncg_q, same_batch, Ngd, "ngd", ("damping",),
        about="minibatches, diagonal preconditioner, coefficients from the quadratic model",
    ),
    KNCG,
    on_minibatches(
        "ngd-diag", "NGD, diagonal", "#999999", ngd(metric=DIAGONAL), own_batch,
        "the control: only the diagonal of the metric",
    ),
    Method(
        "hf", "Hessian-Free", "#8C510A", hessian_free(preconditioner=ng.Diagonal(0.75, blocks=50), l2=2e-5),
        lambda own: Batches(FullBatch(), metric=Minibatch(own.hf.part), ratio=Minibatch(own.hf.part)), HessianFree,
        about="Hessian-Free: all cases, curvature on a part of them",
    ),
    krylov(
        "ksd", "KSD", "#AA4499", True,
        "Krylov Subspace Descent: gradient on all cases, the rest on parts of them",
    ),
    krylov(
        "ksd-without", "KSD, no last step", "#998EC3", False, "the control: KSD whose space lacks the last step"
    ),
    in_batch_mode(
        "ncg-l-cobyla", "NCG-L, COBYLA", "#66A61E", conjugate(search=ng.Cobyla()),
        "NCG-L with the paper's own search, on the host", on_host=True,
    ),
    in_batch_mode(
        "ncg-f-diag", "NCG-F, diagonal", "#666666", conjugate(beta=ng.PolakRibiere(), metric=DIAGONAL),
        "the control: Polak-Ribière with only the diagonal of the metric",
    ),
    on_minibatches(
        "ngd-search-same", "NGD, searched: same", "#A6CEE3", ngd(search=ng.LineSearch()), own_batch,
        "minibatches, line search on the gradient's own",
    ),
    on_minibatches(
        "ngd-search-fresh", "NGD, searched: fresh", "#1F78B4", ngd(search=ng.LineSearch()),
        lambda own: replace(own_batch(own), search=Others(own.ngd.batch)),
        "minibatches, line search on cases the gradient did not see",
    ),
    on_minibatches(
        "ngd-search-full", "NGD, searched: all", "#08306B", ngd(search=ng.LineSearch()),
        lambda own: replace(own_batch(own), search=FullBatch()), "minibatches, line search on all cases",
    ),
    first_order("tonga", "TONGA", "#B2182B", tonga, Tonga, "online covariance of the gradients"),
    NESTEROV,
    ADAM,
    LBFGS,
)  # fmt: skip
