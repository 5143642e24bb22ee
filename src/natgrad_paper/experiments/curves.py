"""Figure 3: the benchmark on Curves. A deep autoencoder, trained by every method from the same start.

A new method is one entry in `METHODS`; its constants are fields of the config, so that presets and the
command line can change them.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import natgrad as ng
from natgrad.solve import CG, MinresQLP
from natgrad_paper.batches import Batches, Minibatch, Others, Whole
from natgrad_paper.data import curves, curves_file
from natgrad_paper.experiment import Errors, Experiment, Method, Problem
from natgrad_paper.experiments.curves_claims import CLAIMS, GROUPS
from natgrad_paper.experiments.curves_config import Config
from natgrad_paper.models import Autoencoder, Layers

SOLVERS = {"cg": CG, "minres-qlp": MinresQLP}


def solver(config: Config, maxiter: int) -> CG | MinresQLP:
    """Return the solver the config names."""
    return SOLVERS[config.solver.name](maxiter=maxiter, rtol=config.solver.rtol)


def damping(config: Config) -> ng.LevenbergMarquardt:
    """Return the damping of the paper's methods; its ratio is the paper's first-order one in all presets."""
    return ng.LevenbergMarquardt(config.damping.initial, reduction=config.damping.reduction)


def sgd(problem: Problem, config: Config) -> ng.Optimizer:
    """Return plain stochastic gradient descent."""
    return ng.sgd(problem.model, problem.likelihood, learning_rate=config.sgd.rate)


def ngd(problem: Problem, config: Config) -> ng.Optimizer:
    """Return natural gradient with a fixed rate."""
    return ng.natural_gradient(
        problem.model,
        problem.likelihood,
        learning_rate=config.ngd.rate,
        solver=solver(config, config.ngd.maxiter),
        damping=damping(config),
    )


def ngd_l(problem: Problem, config: Config) -> ng.Optimizer:
    """Return natural gradient with a line search."""
    return ng.natural_gradient(
        problem.model,
        problem.likelihood,
        search=ng.LineSearch(),
        solver=solver(config, config.full.maxiter),
        damping=damping(config),
    )


def conjugate(**parts: Any) -> Callable[[Problem, Config], ng.Optimizer]:
    """Return a builder of natural conjugate gradient in batch mode, with these parts."""

    def build(problem: Problem, config: Config) -> ng.Optimizer:
        natural = ng.Natural(solver(config, config.full.maxiter))
        return ng.natural_conjugate_gradient(
            problem.model, problem.likelihood, direction=natural, damping=damping(config), **parts
        )

    return build


def ncg_q(problem: Problem, config: Config) -> ng.Optimizer:
    """Return conjugate gradient from the quadratic model; λ by the quadratic ratio, which this method needs."""
    return ng.natural_conjugate_gradient(
        problem.model,
        problem.likelihood,
        direction=ng.Preconditioned(ng.Jacobi(blocks=20)),
        damping=ng.LevenbergMarquardt(config.damping.initial),
    )


def ngd_diagonal(problem: Problem, config: Config) -> ng.Optimizer:
    """Return natural gradient with the diagonal of the metric, the control the paper argues against."""
    return replace(ngd(problem, config), metric=ng.DiagonalFisher(blocks=20))


def hessian_free(problem: Problem, config: Config) -> ng.Optimizer:
    """Return Martens' Hessian-Free."""
    return ng.hessian_free(
        problem.model,
        problem.likelihood,
        solver=ng.CG(config.hf.maxiter, 0.0, progress=5e-4, snapshots=True),
        precondition=ng.Diagonal(0.75, blocks=50),
        damping=ng.LevenbergMarquardt(config.hf.damping),
        l2=2e-5,
    )


def krylov(last_step: bool) -> Callable[[Problem, Config], ng.Optimizer]:
    """Return a builder of Krylov Subspace Descent, with or without the last step in its space."""

    def build(problem: Problem, config: Config) -> ng.Optimizer:
        return ng.krylov_subspace_descent(
            problem.model, problem.likelihood, size=config.ksd.size, last_step=last_step
        )

    return build


def tonga(problem: Problem, config: Config) -> ng.Optimizer:
    """Return TONGA."""
    return ng.tonga(
        problem.model,
        problem.likelihood,
        learning_rate=config.tonga.rate,
        damping=ng.Constant(config.tonga.damping),
    )


# Okabe and Ito's colours, told apart by colour-blind readers too. The paper's methods first.
METHODS = (
    Method(
        "sgd", "SGD", "#000000", sgd, lambda c: Batches(Minibatch(c.sgd.batch)),
        steps_per_call=lambda c: c.sgd.steps_per_call, about="minibatches, constant rate, no momentum",
    ),
    Method(
        "ngd", "NGD", "#0072B2", ngd, lambda c: Batches(Minibatch(c.ngd.batch), Others(c.ngd.metric_batch)),
        about="gradient and metric on different minibatches, fixed rate",
    ),
    Method(
        "ngd-same", "NGD, same batch", "#56B4E9", ngd, lambda c: Batches(Minibatch(c.ngd.batch)),
        about="the control: gradient and metric on the same minibatch, fixed rate",
    ),
    Method(
        "ngd-l", "NGD-L", "#D55E00", ngd_l, lambda c: Batches(Whole()),
        about="all cases in every step, line search",
    ),
    Method(
        "ncg-l", "NCG-L", "#009E73", conjugate(), lambda c: Batches(Whole()),
        about="all cases, natural gradient and last step, searched together",
    ),
    Method(
        "ncg-f", "NCG-F", "#CC79A7", conjugate(beta=ng.PolakRibiere()), lambda c: Batches(Whole()),
        about="all cases, Polak-Ribière's formula, line search",
    ),
    Method(
        "ncg-q", "NCG-Q", "#E69F00", ncg_q, lambda c: Batches(Minibatch(c.ngd.batch)),
        about="minibatches, diagonal preconditioner, coefficients from the quadratic model",
    ),
    Method(
        "ngd-diag", "NGD, diagonal", "#999999", ngd_diagonal,
        lambda c: Batches(Minibatch(c.ngd.batch), Others(c.ngd.metric_batch)),
        about="the control: only the diagonal of the metric",
    ),
    Method(
        "hf", "HF", "#8C510A", hessian_free,
        lambda c: Batches(Whole(), metric=Minibatch(c.hf.part), ratio=Minibatch(c.hf.part)),
        about="Hessian-Free: all cases, curvature on a part of them",
    ),
    Method(
        "ksd", "KSD", "#542788", krylov(True),
        lambda c: Batches(Whole(), metric=Minibatch(c.ksd.part), search=Others(c.ksd.part)),
        about="Krylov Subspace Descent: gradient on all cases, the rest on parts of them",
    ),
    Method(
        "ksd-without", "KSD without last step", "#998EC3", krylov(False),
        lambda c: Batches(Whole(), metric=Minibatch(c.ksd.part), search=Others(c.ksd.part)),
        about="the control: KSD whose space lacks the last step",
    ),
    Method(
        "tonga", "TONGA", "#B2182B", tonga, lambda c: Batches(Minibatch(c.tonga.batch)),
        steps_per_call=lambda c: c.tonga.steps_per_call, about="online covariance of the gradients",
    ),
)  # fmt: skip


def errors(model: Autoencoder) -> Errors:
    """Return the measures of the figure: both are sums over pixels."""

    def measure(params: Layers, inputs: Array, targets: Array) -> dict[str, Array]:
        logits = model(params, inputs)
        difference = jax.nn.sigmoid(logits) - targets
        return {
            "squared_error": jnp.sum(difference**2, axis=-1),
            "cross_entropy": ng.Bernoulli().nll(logits, targets),
        }

    return measure


def prepare(config: Config, path: Path | None) -> Problem:
    """Return the problem: the original data when the user has it, else the regenerated."""
    if path is None:
        images = curves.generate(config.data.seed, config.data.train, config.data.test)
    else:
        images = curves_file.read(path).first(config.data.train, config.data.test)
    model = Autoencoder(config.model.encoder)
    return Problem(
        model=model,
        likelihood=ng.Bernoulli(),
        init=model.init,
        errors=errors(model),
        train=(images.train, images.train),
        test=(images.test, images.test) if len(images.test) else None,
        data=images.describe(),
    )


EXPERIMENT = Experiment(
    "curves", "Figure 3: the Curves benchmark", Config, METHODS, prepare, ("sgd", "ngd", "ngd-same", "ngd-l"),
    claims=CLAIMS, groups=GROUPS,
)  # fmt: skip
