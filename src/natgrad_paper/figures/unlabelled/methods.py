"""The conditions of figure 1: one method, whose metric is measured on different inputs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import natgrad as ng
from natgrad_paper.figures.curves import methods
from natgrad_paper.figures.curves.methods import NATURAL, own_batch, same_batch
from natgrad_paper.training.batches import Batches, Minibatch, Others, Unlabelled
from natgrad_paper.training.problem import Method, Problem
from natgrad_paper.training.settings import Count, Positive, Section, Size


class Ngd(Section):
    """Natural gradient with a fixed rate: the same in all conditions."""

    batch: Count = 256
    """Cases of the gradient."""
    metric_batch: Count = 384
    """Cases of the metric, if they are not the gradient's own."""
    rate: Positive = 0.2
    """The learning rate."""
    maxiter: Size = 20
    """Solver iterations at most; the paper has 50."""
    microbatch: Count | None = None
    """How many of a step's cases are in memory at a time, if memory is short."""


def ngd(problem: Problem, settings: Any) -> ng.Optimizer:
    """Return natural gradient with a fixed rate."""
    return replace(methods.ngd()(problem, settings), microbatch=settings.ngd.microbatch)


def condition(name: str, label: str, color: str, batches: Callable[[Any], Batches], about: str) -> Method:
    """Return a condition."""
    return Method(name, label, color, ngd, batches, Ngd, "ngd", NATURAL, about=about)


# The colours of the paper's figure, green, blue and red, in shades that colour-blind readers can tell apart.
METHODS = (
    condition("same", "same samples", "#009E73", same_batch, "gradient and metric on the same minibatch"),
    condition(
        "other", "other samples", "#0072B2", own_batch,
        "metric on training cases that the gradient does not see in this step",
    ),
    condition(
        "unlabelled", "unlabelled samples", "#D55E00",
        lambda own: Batches(Minibatch(own.ngd.batch), Unlabelled(own.ngd.metric_batch)),
        "metric on unlabelled faces",
    ),
    condition(
        "other-equal", "other (equal)", "#56B4E9",
        lambda own: Batches(Minibatch(own.ngd.batch), Others(own.ngd.batch)),
        "the control: as many other training cases as the gradient has",
    ),
    condition(
        "unlabelled-equal", "unlabelled (equal)", "#E69F00",
        lambda own: Batches(Minibatch(own.ngd.batch), Unlabelled(own.ngd.batch)),
        "the control: as many unlabelled faces as the gradient has cases",
    ),
)  # fmt: skip
