"""Figure 3: the benchmark on Curves. A deep autoencoder, trained by every method from the same start.

A new method is one entry in `METHODS`; its constants are fields of the config, so that presets and the
command line can change them.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad.solve import CG, MinresQLP
from natgrad_paper import first_order
from natgrad_paper.batches import Batches, Growing, Minibatch, Others, Part, Whole
from natgrad_paper.data import curves, curves_file
from natgrad_paper.data.images import Images
from natgrad_paper.experiment import Experiment, Method, Problem, Share
from natgrad_paper.experiments.curves_claims import CLAIMS, GROUPS
from natgrad_paper.experiments.curves_config import Competition, Config, Natural
from natgrad_paper.models import Autoencoder, Layers

SOLVERS = {"cg": CG, "minres-qlp": MinresQLP}


def solver(config: Natural, maxiter: int) -> CG | MinresQLP:
    """Return the solver the config names."""
    return SOLVERS[config.solver.name](maxiter=maxiter, rtol=config.solver.rtol)


def damping(config: Natural) -> ng.LevenbergMarquardt:
    """Return the damping of the paper's methods; with which ratio λ follows is the preset's to say."""
    return ng.LevenbergMarquardt(config.damping.initial, reduction=config.damping.reduction)


def sgd(problem: Problem, config: Competition) -> ng.Optimizer:
    """Return plain stochastic gradient descent."""
    return ng.sgd(problem.model, problem.likelihood, learning_rate=config.sgd.rate)


def ngd(problem: Problem, config: Natural) -> ng.Optimizer:
    """Return natural gradient with a fixed rate."""
    return ng.natural_gradient(
        problem.model,
        problem.likelihood,
        learning_rate=config.ngd.rate,
        solver=solver(config, config.ngd.maxiter),
        damping=damping(config),
    )


def ngd_l(problem: Problem, config: Competition) -> ng.Optimizer:
    """Return natural gradient with a line search."""
    return ng.natural_gradient(
        problem.model,
        problem.likelihood,
        search=ng.LineSearch(),
        solver=solver(config, config.full.maxiter),
        damping=damping(config),
    )


def conjugate(**parts: Any) -> Callable[[Problem, Competition], ng.Optimizer]:
    """Return a builder of natural conjugate gradient in batch mode, with these parts."""

    def build(problem: Problem, config: Competition) -> ng.Optimizer:
        natural = ng.Natural(solver(config, config.full.maxiter))
        return ng.natural_conjugate_gradient(
            problem.model, problem.likelihood, direction=natural, damping=damping(config), **parts
        )

    return build


def ncg_q(problem: Problem, config: Competition) -> ng.Optimizer:
    """Return conjugate gradient from the quadratic model; λ by the quadratic ratio; no step that raises the loss."""
    return ng.natural_conjugate_gradient(
        problem.model,
        problem.likelihood,
        direction=ng.Preconditioned(ng.Jacobi(blocks=20)),
        damping=ng.LevenbergMarquardt(config.damping.initial),
        reject=0.0,
    )


def ncg_kronecker(problem: Problem, config: Competition) -> ng.Averaged:
    """Return NCG-Q with the Kronecker preconditioner: λ falls slowly to a floor, parameters are averaged."""
    kron = config.kron
    damping = ng.LevenbergMarquardt(kron.damping, bounds=(kron.floor, 1e8), lower_by=kron.lower_by)
    return ng.Averaged(ng.fast(problem.model, problem.likelihood, damping=damping), kron.average)


def ngd_search(problem: Problem, config: Competition) -> ng.Optimizer:
    """Return natural gradient on minibatches with a line search, on whatever cases the arm searches."""
    return replace(ngd(problem, config), search=ng.LineSearch())


def ngd_diagonal(problem: Problem, config: Competition) -> ng.Optimizer:
    """Return natural gradient with the diagonal of the metric, the control the paper argues against."""
    return replace(ngd(problem, config), metric=ng.DiagonalFisher(blocks=20))


def ncg_f_diagonal(problem: Problem, config: Competition) -> ng.Optimizer:
    """Return Gonzalez and Dorronsoro's method: conjugate natural gradient with the diagonal of the metric."""
    return replace(conjugate(beta=ng.PolakRibiere())(problem, config), metric=ng.DiagonalFisher(blocks=20))


def hessian_free(problem: Problem, config: Competition) -> ng.Optimizer:
    """Return Martens' Hessian-Free."""
    return ng.hessian_free(
        problem.model,
        problem.likelihood,
        solver=ng.TruncatedCG(config.hf.maxiter),
        preconditioner=ng.Diagonal(0.75, blocks=50),
        damping=ng.LevenbergMarquardt(config.hf.damping),
        l2=2e-5,
    )


def krylov(last_step: bool) -> Callable[[Problem, Competition], ng.Optimizer]:
    """Return a builder of Krylov Subspace Descent, with or without the last step in its space."""

    def build(problem: Problem, config: Competition) -> ng.Optimizer:
        return ng.krylov_subspace_descent(
            problem.model, problem.likelihood, size=config.ksd.size, last_step=last_step
        )

    return build


def tonga(problem: Problem, config: Competition) -> ng.Optimizer:
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
        "ncg-kron", "NCG-Q, Kronecker", "#D95F02", ncg_kronecker,
        lambda c: Batches(
            Growing(c.kron.first, c.kron.batch, c.kron.double), metric=Part(c.kron.part), ratio=Part(c.kron.part)
        ),
        about="growing minibatches, Kronecker preconditioner, coefficients from the quadratic model",
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
        "ksd-without", "KSD, no last step", "#998EC3", krylov(False),
        lambda c: Batches(Whole(), metric=Minibatch(c.ksd.part), search=Others(c.ksd.part)),
        about="the control: KSD whose space lacks the last step",
    ),
    Method(
        "ncg-l-cobyla", "NCG-L, COBYLA", "#66A61E", conjugate(search=ng.Cobyla()), lambda c: Batches(Whole()),
        about="NCG-L with the paper's own search, on the host", on_host=True,
    ),
    Method(
        "ncg-f-diag", "NCG-F, diagonal", "#666666", ncg_f_diagonal, lambda c: Batches(Whole()),
        about="the control: Polak-Ribière with only the diagonal of the metric",
    ),
    Method(
        "ngd-search-same", "NGD, searched: same", "#A6CEE3", ngd_search,
        lambda c: Batches(Minibatch(c.ngd.batch), Others(c.ngd.metric_batch)),
        about="minibatches, line search on the gradient's own",
    ),
    Method(
        "ngd-search-fresh", "NGD, searched: fresh", "#1F78B4", ngd_search,
        lambda c: Batches(Minibatch(c.ngd.batch), Others(c.ngd.metric_batch), search=Others(c.ngd.batch)),
        about="minibatches, line search on cases the gradient did not see",
    ),
    Method(
        "ngd-search-full", "NGD, searched: all", "#08306B", ngd_search,
        lambda c: Batches(Minibatch(c.ngd.batch), Others(c.ngd.metric_batch), search=Whole()),
        about="minibatches, line search on all cases",
    ),
    Method(
        "tonga", "TONGA", "#B2182B", tonga, lambda c: Batches(Minibatch(c.tonga.batch)),
        steps_per_call=lambda c: c.tonga.steps_per_call, about="online covariance of the gradients",
    ),
    Method(
        "nesterov", "Nesterov momentum", "#BF812D",
        lambda p, c: first_order.nesterov(p, c.nesterov.rate, c.nesterov.momentum),
        lambda c: Batches(Minibatch(c.nesterov.batch)),
        steps_per_call=lambda c: c.nesterov.steps_per_call, about="minibatches, rate and batch tuned on Curves (optax)",
    ),
    Method(
        "adam", "Adam", "#E41A1C", lambda p, c: first_order.adam(p, c.adam.rate),
        lambda c: Batches(Minibatch(c.adam.batch)),
        steps_per_call=lambda c: c.adam.steps_per_call, about="minibatches, rate and batch tuned on Curves (optax)",
    ),
    Method(
        "lbfgs", "L-BFGS", "#7F7F7F", lambda p, c: first_order.lbfgs(p, c.lbfgs.memory),
        lambda c: Batches(Whole()), about="all cases in every step, zoom line search (optax)",
    ),
)  # fmt: skip


def reconstruction(
    images: Images, encoder: tuple[int, ...], likelihood: Any, cost: str = "cross_entropy"
) -> Problem:
    """Return the problem of reconstructing images, with the measures of the figure, which are sums over pixels.

    Args:
        images: Square ones.
        encoder: Units from the input to the code.
        likelihood: Of the pixels; its negative logarithm is what is lowered.
        cost: What that is called in the logs.
    """
    model = Autoencoder(encoder)

    def errors(params: Layers, inputs: Array, targets: Array) -> dict[str, Array]:
        outputs = model(params, inputs)
        difference = likelihood.mean(outputs) - targets
        return {"squared_error": jnp.sum(difference**2, axis=-1), cost: likelihood.nll(outputs, targets)}

    side = math.isqrt(encoder[0])
    return Problem(
        model=model,
        likelihood=likelihood,
        init=model.init,
        errors=errors,
        train=(images.train, images.train),
        test=(images.test, images.test) if len(images.test) else None,
        data=images.describe(),
        pictures=lambda params, inputs: likelihood.mean(model(params, inputs)).reshape(-1, side, side),
        # The mean image is the best constant answer: its error is the variance of the pixels.
        plateau={"squared_error": float(images.train.var(axis=0, dtype=np.float64).sum())},
    )


def prepare(config: Config, path: Path | None) -> Problem:
    """Return the problem: the original data when the user has it, else the regenerated."""
    if path is None:
        images = curves.generate(config.data.seed, config.data.train, config.data.test)
    else:
        images = curves_file.read(path).first(config.data.train, config.data.test, str(path))
    return reconstruction(images, config.model.encoder, ng.Bernoulli())


def share(config: Config, path: Path | None, part: Share) -> Problem:
    """Return the problem with a share of the images: of the regenerated ones, no others are drawn."""
    if path is None:
        images, data = curves.generate_share(config.data.seed, config.data.train, config.data.test, part)
    else:
        whole = curves_file.read(path).first(config.data.train, config.data.test, str(path))
        images, data = whole.share(part), whole.describe()
    return replace(reconstruction(images, config.model.encoder, ng.Bernoulli()), data=data)


EXPERIMENT = Experiment(
    "curves", "Figure 3: the Curves benchmark", Config, METHODS, prepare, ("sgd", "ngd", "ngd-l", "ncg-kron"),
    claims=CLAIMS, groups=GROUPS, share=share,
)  # fmt: skip
