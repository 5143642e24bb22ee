"""Figure 3: the benchmark on Curves. A deep autoencoder, trained by every method from the same start.

A new method is one entry in `METHODS`; its constants are fields of the config, so that presets and the
command line can change them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from jax import Array

import natgrad as ng
from natgrad.solve import CG, MinresQLP
from natgrad_paper.batches import Batches, Minibatch, Others, Whole
from natgrad_paper.config import Count, NonNegative, Positive, Rule, Unfit
from natgrad_paper.config import Whole as WholeNumber
from natgrad_paper.data import curves, curves_file
from natgrad_paper.experiment import Budget, Errors, Experiment, Method, Problem
from natgrad_paper.models import Autoencoder, Layers


@dataclass(frozen=True)
class Data:
    """How much of the data is used, and the seed that generates it (not the seed of a run)."""

    train: Annotated[int, Rule("a whole number from 2 to 20000", lambda n: 2 <= n <= curves.TRAIN)]
    test: Annotated[int, Rule("a whole number from 0 to 10000", lambda n: 0 <= n <= curves.TEST)]
    seed: WholeNumber = 0


@dataclass(frozen=True)
class Model:
    """The autoencoder: units from the input to the code; the decoder mirrors them."""

    encoder: Annotated[
        tuple[int, ...],
        Rule(
            "a list of at least two whole numbers that starts with 784",
            lambda units: len(units) >= 2 and units[0] == 784 and min(units) >= 1,
        ),
    ]


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent, with a constant rate and no momentum."""

    batch: Count
    rate: Positive
    steps_per_call: Count = 20
    """Steps in one call of the compiled loop, so that Python's overhead is not charged to short steps."""


@dataclass(frozen=True)
class Minibatched:
    """Natural gradient on minibatches."""

    batch: Count
    metric_batch: Count
    rate: Positive
    maxiter: Count
    """Solver iterations at most, as below."""


@dataclass(frozen=True)
class FullBatch:
    """Natural gradient in batch mode: gradient, metric and search on all cases."""

    maxiter: Count


@dataclass(frozen=True)
class Solver:
    """The linear solver of every natural method."""

    name: Literal["cg", "minres-qlp"]
    rtol: NonNegative


@dataclass(frozen=True)
class Damping:
    """Levenberg–Marquardt: where λ starts, and the model of the change of the loss in its ratio."""

    initial: Positive
    reduction: Literal["linear", "quadratic"]


@dataclass(frozen=True)
class Config:
    """All of the experiment's numbers."""

    data: Data
    model: Model
    budget: Budget
    solver: Solver
    damping: Damping
    sgd: Sgd
    ngd: Minibatched
    full: FullBatch
    evaluation_chunk: Count = 1000
    """Cases evaluated at a time."""

    def __post_init__(self) -> None:
        for field, batch in (("sgd.batch", self.sgd.batch), ("ngd.batch", self.ngd.batch)):
            if batch > self.data.train:
                raise Unfit(field, f"at most data.train = {self.data.train}", batch)
        if self.ngd.batch + self.ngd.metric_batch > self.data.train:
            others = self.data.train - self.ngd.batch
            raise Unfit(
                "ngd.metric_batch", f"at most the {others} cases the gradient leaves", self.ngd.metric_batch
            )


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


EXPERIMENT = Experiment("curves", "Figure 3: the Curves benchmark", Config, METHODS, prepare)
