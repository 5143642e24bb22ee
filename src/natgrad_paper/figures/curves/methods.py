"""The methods of figure 3, each beside its constants: a new method is one entry of `METHODS` and one `Section`.

A section's defaults are the constants of the preset `small`; presets and `--set` change them by the section's name.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from pydantic import model_validator

import natgrad as ng
from natgrad_paper.training import baselines
from natgrad_paper.training.batches import Batches, FirstOf, FullBatch, Growing, Minibatch, Others
from natgrad_paper.training.problem import Method, Problem
from natgrad_paper.training.settings import Count, Decay, NonNegative, Positive, Section, Size, unfit

NATURAL = ("solver", "damping")
"""Sections that all natural methods share."""
Build = Callable[[Problem, Any], ng.Optimizer]


class Solver(Section):
    """The linear solver of the paper's methods."""

    name: Literal["cg", "minres-qlp"] = "cg"
    """The paper's is minres-qlp."""
    rtol: NonNegative = 1e-4

    def limited(self, maxiter: int) -> ng.CG | ng.MinresQLP:
        """Return the solver, with at most so many iterations."""
        return {"cg": ng.CG, "minres-qlp": ng.MinresQLP}[self.name](maxiter=maxiter, rtol=self.rtol)


class Damping(Section):
    """Levenberg–Marquardt: where λ starts, and the model of the change of the loss in its ratio."""

    initial: Positive = 3.0
    reduction: Literal["linear", "quadratic"] = "quadratic"
    """The paper's is linear: after an exact search that ratio is ½ whatever λ is, and λ would never move."""

    @property
    def rule(self) -> ng.LevenbergMarquardt:
        """The rule that moves λ."""
        return ng.LevenbergMarquardt(self.initial, reduction=self.reduction)


class Sgd(Section):
    """Stochastic gradient descent, with a constant rate and no momentum."""

    batch: Count = 100
    rate: Positive = 0.01
    steps_per_call: Size = 20
    """Most steps in one call of the compiled loop, so that Python's overhead is not charged to short steps."""


def sgd(problem: Problem, settings: Any) -> ng.Optimizer:
    """Return plain stochastic gradient descent."""
    return ng.sgd(problem.model, problem.likelihood, learning_rate=settings.sgd.rate)


class Ngd(Section):
    """Natural gradient on minibatches."""

    batch: Count = 500
    """The paper's is 5000 in the text, 1000 in the caption of figure 3."""
    metric_batch: Count = 500
    """Cases of the metric, where they are not the gradient's own."""
    rate: Positive = 1.0
    maxiter: Size = 6
    """Solver iterations at most."""


def ngd(problem: Problem, settings: Any) -> ng.Optimizer:
    """Return natural gradient with a fixed rate."""
    return ng.natural_gradient(
        problem.model,
        problem.likelihood,
        learning_rate=settings.ngd.rate,
        solver=settings.solver.limited(settings.ngd.maxiter),
        damping=settings.damping.rule,
    )


def ngd_searched(problem: Problem, settings: Any) -> ng.Optimizer:
    """Return natural gradient on minibatches with a line search, on whatever cases the method searches."""
    return replace(ngd(problem, settings), search=ng.LineSearch())


def ngd_diagonal(problem: Problem, settings: Any) -> ng.Optimizer:
    """Return natural gradient with the diagonal of the metric, the control the paper argues against."""
    return replace(ngd(problem, settings), metric=ng.DiagonalFisher(blocks=20))


def apart(settings: Any) -> Batches:
    """Return gradient and metric on different minibatches."""
    return Batches(Minibatch(settings.ngd.batch), Others(settings.ngd.metric_batch))


def together(settings: Any) -> Batches:
    """Return gradient and metric on the same minibatch."""
    return Batches(Minibatch(settings.ngd.batch))


class Full(Section):
    """Natural gradient in batch mode: gradient, metric and search on all cases."""

    maxiter: Size = 10
    """Solver iterations at most."""
    preconditioner: Literal["none", "kronecker"] = "none"
    """Of the solver; the paper has none. With Kronecker factors 50 iterations stand for its 250."""

    @property
    def part(self) -> ng.Identity | ng.Kronecker:
        """The preconditioner."""
        return ng.Identity() if self.preconditioner == "none" else ng.Kronecker()


def ngd_l(problem: Problem, settings: Any) -> ng.Optimizer:
    """Return natural gradient with a line search."""
    return ng.natural_gradient(
        problem.model,
        problem.likelihood,
        search=ng.LineSearch(),
        solver=settings.solver.limited(settings.full.maxiter),
        preconditioner=settings.full.part,
        damping=settings.damping.rule,
    )


def conjugate(**parts: Any) -> Build:
    """Return a builder of natural conjugate gradient in batch mode, with these parts."""

    def build(problem: Problem, settings: Any) -> ng.Optimizer:
        solver = settings.solver.limited(settings.full.maxiter)
        return ng.natural_conjugate_gradient(
            problem.model,
            problem.likelihood,
            direction=ng.Natural(solver, settings.full.part),
            damping=settings.damping.rule,
            **parts,
        )

    return build


def everything(settings: Any) -> Batches:
    """Return all cases in every step."""
    return Batches(FullBatch())


def ncg_q(problem: Problem, settings: Any) -> ng.Optimizer:
    """Return conjugate gradient from the quadratic model; λ by the quadratic ratio; no step that raises the loss."""
    return ng.natural_conjugate_gradient(
        problem.model,
        problem.likelihood,
        direction=ng.Preconditioned(ng.Jacobi(blocks=20)),
        damping=ng.LevenbergMarquardt(settings.damping.initial),
        reject=0.0,
    )


class Kncg(Section):
    """KNCG: NCG-Q with the Kronecker preconditioner, on minibatches that grow."""

    batch: Count = 500
    """Cases in a late step."""
    first: Count = 125
    """Cases in an early step: they double every `double` steps."""
    double: Count = 150
    part: Count = 250
    """Of them, at most so many for the metric and for ρ."""
    damping: Positive = 3e-3
    floor: Positive = 1e-4
    """λ does not fall below."""
    lower_by: Positive = 0.98
    average: Decay = 0.98
    """Of the parameters that are judged: an average over about a tenth of the path, at most 50 steps; 0 for none."""

    @model_validator(mode="after")
    def _fits(self) -> "Kncg":
        if self.first > self.batch:
            unfit("first", f"at most batch = {self.batch}", self.first)
        if self.floor > self.damping:
            unfit("floor", f"at most damping = {self.damping:g}", self.floor)
        return self


def kncg(problem: Problem, settings: Any) -> ng.Averaged:
    """Return NCG-Q with the Kronecker preconditioner: λ falls slowly to a floor, parameters are averaged."""
    own = settings.kncg
    damping = ng.LevenbergMarquardt(own.damping, bounds=(own.floor, 1e8), lower_by=own.lower_by)
    return ng.Averaged(ng.fast(problem.model, problem.likelihood, damping=damping), own.average)


def growing(settings: Any) -> Batches:
    """Return batches that grow, the metric and ρ on a part of them."""
    own = settings.kncg
    part = FirstOf(own.part)
    return Batches(Growing(own.first, own.batch, own.double), metric=part, ratio=part)


class HessianFree(Section):
    """Martens' Hessian-Free: gradient and search on all cases, curvature and ratio on a part of them."""

    maxiter: Size = 30
    part: Count = 1000
    damping: Positive = 45.0


def hessian_free(problem: Problem, settings: Any) -> ng.Optimizer:
    """Return Martens' Hessian-Free."""
    return ng.hessian_free(
        problem.model,
        problem.likelihood,
        solver=ng.TruncatedCG(settings.hf.maxiter),
        preconditioner=ng.Diagonal(0.75, blocks=50),
        damping=ng.LevenbergMarquardt(settings.hf.damping),
        l2=2e-5,
    )


class Ksd(Section):
    """Krylov Subspace Descent: gradient on all cases, curvature and search each on a part of them."""

    size: Size = 20
    """Of the subspace, the last step not counted."""
    part: Count = 500


def krylov(last_step: bool) -> Build:
    """Return a builder of Krylov Subspace Descent, with or without the last step in its space."""

    def build(problem: Problem, settings: Any) -> ng.Optimizer:
        size = settings.ksd.size
        return ng.krylov_subspace_descent(problem.model, problem.likelihood, size=size, last_step=last_step)

    return build


def krylov_batches(settings: Any) -> Batches:
    """Return the gradient on all cases, curvature and search each on a part of them."""
    part = settings.ksd.part
    return Batches(FullBatch(), metric=Minibatch(part), search=Others(part))


class Tonga(Section):
    """TONGA on minibatches."""

    batch: Count = 100
    rate: Positive = 0.01
    damping: Positive = 1.0
    steps_per_call: Size = 20


def tonga(problem: Problem, settings: Any) -> ng.Optimizer:
    """Return TONGA."""
    own = settings.tonga
    damping = ng.Constant(own.damping)
    return ng.tonga(problem.model, problem.likelihood, learning_rate=own.rate, damping=damping)


class Nesterov(Section):
    """Nesterov momentum; rate and batch are tuned on Curves, and nowhere else."""

    batch: Count = 100
    rate: Positive = 0.008
    momentum: Decay = 0.999
    """Where the schedule of momentum ends."""
    steps_per_call: Size = 20


class Adam(Section):
    """Adam; rate and batch are tuned on Curves, and nowhere else."""

    batch: Count = 200
    rate: Positive = 0.003
    steps_per_call: Size = 20


class Lbfgs(Section):
    """L-BFGS in batch mode."""

    memory: Size = 10


KNCG = Method(
    "kncg", "KNCG", "#D55E00", kncg, growing, settings=Kncg,
    about="growing minibatches, Kronecker preconditioner, coefficients from the quadratic model, averaged",
)  # fmt: skip
NESTEROV = Method(
    "nesterov", "Nesterov momentum", "#332288",
    lambda problem, own: baselines.nesterov(problem, own.nesterov.rate, own.nesterov.momentum),
    lambda own: Batches(Minibatch(own.nesterov.batch)), settings=Nesterov,
    steps_per_call=lambda own: own.nesterov.steps_per_call, about="minibatches, rate and batch tuned (optax)",
)  # fmt: skip
ADAM = Method(
    "adam", "Adam", "#117733", lambda problem, own: baselines.adam(problem, own.adam.rate),
    lambda own: Batches(Minibatch(own.adam.batch)), settings=Adam,
    steps_per_call=lambda own: own.adam.steps_per_call, about="minibatches, rate and batch tuned (optax)",
)  # fmt: skip
LBFGS = Method(
    "lbfgs", "L-BFGS", "#7F7F7F", lambda problem, own: baselines.lbfgs(problem, own.lbfgs.memory), everything,
    settings=Lbfgs, about="all cases in every step, zoom line search (optax)",
)  # fmt: skip


def on_minibatches(
    name: str, label: str, color: str, build: Build, batches: Callable[[Any], Batches], about: str
) -> Method:
    """Return a method with the constants of natural gradient on minibatches."""
    return Method(name, label, color, build, batches, settings=Ngd, section="ngd", reads=NATURAL, about=about)


def in_batch_mode(
    name: str, label: str, color: str, build: Build, about: str, on_host: bool = False
) -> Method:
    """Return a method with the constants of natural gradient in batch mode."""
    return Method(
        name, label, color, build, everything, settings=Full, section="full", reads=NATURAL, about=about,
        on_host=on_host,
    )  # fmt: skip


# Colours of Okabe and Ito, and of Tol: told apart by colour-blind readers too. The paper's methods first.
METHODS = (
    Method(
        "sgd", "SGD", "#000000", sgd, lambda own: Batches(Minibatch(own.sgd.batch)), settings=Sgd,
        steps_per_call=lambda own: own.sgd.steps_per_call, about="minibatches, constant rate, no momentum",
    ),
    on_minibatches(
        "ngd", "NGD", "#0072B2", ngd, apart, "gradient and metric on different minibatches, fixed rate"
    ),
    on_minibatches(
        "ngd-same", "NGD, same batch", "#56B4E9", ngd, together,
        "the control: gradient and metric on the same minibatch, fixed rate",
    ),
    in_batch_mode("ngd-l", "NGD-L", "#E69F00", ngd_l, "all cases in every step, line search"),
    in_batch_mode(
        "ncg-l", "NCG-L", "#009E73", conjugate(), "all cases, natural gradient and last step, searched together"
    ),
    in_batch_mode(
        "ncg-f", "NCG-F", "#CC79A7", conjugate(beta=ng.PolakRibiere()),
        "all cases, Polak-Ribière's formula, line search",
    ),
    Method(
        "ncg-q", "NCG-Q", "#DDCC77", ncg_q, together, settings=Ngd, section="ngd", reads=("damping",),
        about="minibatches, diagonal preconditioner, coefficients from the quadratic model",
    ),
    KNCG,
    on_minibatches(
        "ngd-diag", "NGD, diagonal", "#999999", ngd_diagonal, apart,
        "the control: only the diagonal of the metric",
    ),
    Method(
        "hf", "HF", "#8C510A", hessian_free,
        lambda own: Batches(FullBatch(), metric=Minibatch(own.hf.part), ratio=Minibatch(own.hf.part)),
        settings=HessianFree, about="Hessian-Free: all cases, curvature on a part of them",
    ),
    Method(
        "ksd", "KSD", "#AA4499", krylov(True), krylov_batches, settings=Ksd,
        about="Krylov Subspace Descent: gradient on all cases, the rest on parts of them",
    ),
    Method(
        "ksd-without", "KSD, no last step", "#998EC3", krylov(False), krylov_batches, settings=Ksd, section="ksd",
        about="the control: KSD whose space lacks the last step",
    ),
    in_batch_mode(
        "ncg-l-cobyla", "NCG-L, COBYLA", "#66A61E", conjugate(search=ng.Cobyla()),
        "NCG-L with the paper's own search, on the host", on_host=True,
    ),
    in_batch_mode(
        "ncg-f-diag", "NCG-F, diagonal", "#666666", conjugate(beta=ng.PolakRibiere(), metric=ng.DiagonalFisher(blocks=20)),
        "the control: Polak-Ribière with only the diagonal of the metric",
    ),
    on_minibatches(
        "ngd-search-same", "NGD, searched: same", "#A6CEE3", ngd_searched, apart,
        "minibatches, line search on the gradient's own",
    ),
    on_minibatches(
        "ngd-search-fresh", "NGD, searched: fresh", "#1F78B4", ngd_searched,
        lambda own: replace(apart(own), search=Others(own.ngd.batch)),
        "minibatches, line search on cases the gradient did not see",
    ),
    on_minibatches(
        "ngd-search-full", "NGD, searched: all", "#08306B", ngd_searched,
        lambda own: replace(apart(own), search=FullBatch()), "minibatches, line search on all cases",
    ),
    Method(
        "tonga", "TONGA", "#B2182B", tonga, lambda own: Batches(Minibatch(own.tonga.batch)), settings=Tonga,
        steps_per_call=lambda own: own.tonga.steps_per_call, about="online covariance of the gradients",
    ),
    NESTEROV,
    ADAM,
    LBFGS,
)  # fmt: skip
