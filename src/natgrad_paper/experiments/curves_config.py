"""The numbers of the Curves benchmark: what the presets fill and the command line can change."""

from dataclasses import dataclass
from typing import Annotated, Literal

from natgrad_paper.config import Count, NonNegative, Positive, Rule, Size, Unfit
from natgrad_paper.config import Whole as WholeNumber
from natgrad_paper.data import curves
from natgrad_paper.experiment import Budget, left

Decay = Annotated[float, Rule("a number from 0 to 1, 1 excluded", lambda m: 0 <= m < 1)]


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
            "a list of at least two whole numbers up to 10000 that starts with 784",
            lambda units: (
                2 <= len(units) <= 100 and units[0] == 784 and 1 <= min(units) <= max(units) <= 10_000
            ),
        ),
    ]


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent, with a constant rate and no momentum."""

    batch: Count
    rate: Positive
    steps_per_call: Size = 20
    """Steps in one call of the compiled loop, so that Python's overhead is not charged to short steps."""


@dataclass(frozen=True)
class Minibatched:
    """Natural gradient on minibatches."""

    batch: Count
    metric_batch: Count
    rate: Positive
    maxiter: Size
    """Solver iterations at most, as below."""


@dataclass(frozen=True)
class FullBatch:
    """Natural gradient in batch mode: gradient, metric and search on all cases."""

    maxiter: Size


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
class HessianFree:
    """Martens' Hessian-Free: gradient and search on all cases, curvature and ratio on a part of them."""

    maxiter: Size
    part: Count
    damping: Positive = 45.0


@dataclass(frozen=True)
class Krylov:
    """Krylov Subspace Descent: gradient on all cases, curvature and search each on a part of them."""

    size: Size
    part: Count


@dataclass(frozen=True)
class Tonga:
    """TONGA on minibatches."""

    batch: Count
    rate: Positive
    damping: Positive = 1.0
    steps_per_call: Size = 20


@dataclass(frozen=True)
class Kron:
    """NCG-Q with the Kronecker preconditioner, on minibatches."""

    batch: Count
    """Cases in a late step."""
    first: Count
    """Cases in an early step: they double every `double` steps."""
    double: Count = 150
    part: Count = 250
    """Of them, at most so many for the metric and for ρ."""
    damping: Positive = 3e-3
    floor: Positive = 1e-4
    """λ does not fall below."""
    lower_by: Positive = 0.98
    average: Decay = 0.98
    """Of the parameters that are judged: an average over about a tenth of the path, at most 50 steps."""

    def __post_init__(self) -> None:
        if self.first > self.batch:
            raise Unfit("first", f"at most batch = {self.batch}", self.first)
        if self.floor > self.damping:
            raise Unfit("floor", f"at most damping = {self.damping:g}", self.floor)


@dataclass(frozen=True)
class Nesterov:
    """Nesterov momentum; rate and batch are tuned on Curves, and nowhere else."""

    batch: Count
    rate: Positive
    momentum: Decay = 0.999
    """Where the schedule of momentum ends."""
    steps_per_call: Size = 20


@dataclass(frozen=True)
class Adam:
    """Adam; rate and batch are tuned on Curves, and nowhere else."""

    batch: Count
    rate: Positive
    steps_per_call: Size = 20


@dataclass(frozen=True)
class Lbfgs:
    """L-BFGS in batch mode."""

    memory: Size = 10


@dataclass(frozen=True, kw_only=True)
class Natural:
    """The numbers of natural gradient on minibatches, and of how long it runs."""

    budget: Budget
    solver: Solver
    damping: Damping
    ngd: Minibatched


@dataclass(frozen=True, kw_only=True)
class Competition(Natural):
    """The numbers of all methods."""

    sgd: Sgd
    full: FullBatch
    hf: HessianFree
    ksd: Krylov
    tonga: Tonga
    kron: Kron
    nesterov: Nesterov
    adam: Adam
    lbfgs: Lbfgs = Lbfgs()
    evaluation_chunk: Size = 1000
    """Cases evaluated at a time."""

    def fits(self, cases: int) -> None:
        """Refuse batches that so many training cases cannot fill."""
        name = "data.train"
        if self.budget.patience is not None:
            cases, name = left(cases), "data.train without validation"
        for section in ("sgd", "kron", "tonga", "nesterov", "adam"):
            if (batch := getattr(self, section).batch) > cases:
                raise Unfit(f"{section}.batch", f"at most {name} = {cases}", batch)
        for section in ("hf", "ksd"):
            if (part := getattr(self, section).part) > cases:
                raise Unfit(f"{section}.part", f"at most {name} = {cases}", part)
        if self.ngd.batch > cases // 2:  # A method searches on as many cases that the gradient does not see.
            raise Unfit("ngd.batch", f"at most half of {name} = {cases}", self.ngd.batch)
        others = cases - self.ngd.batch
        if self.ngd.metric_batch > others:
            raise Unfit(
                "ngd.metric_batch", f"at most the {others} cases the gradient leaves", self.ngd.metric_batch
            )


@dataclass(frozen=True, kw_only=True)
class Config(Competition):
    """All of the experiment's numbers."""

    data: Data
    model: Model

    def __post_init__(self) -> None:
        self.fits(self.data.train)
