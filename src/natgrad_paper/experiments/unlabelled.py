"""Figure 1: unlabelled data in the metric. A convolutional net learns expressions from faces.

The gradient sees a minibatch of labelled faces. What differs is where the metric is measured: on the same faces, on
others of the training set, or on faces whose expression nobody wrote down, which it does not need.
"""

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import special

import natgrad as ng
from natgrad_paper.batches import Batches, Minibatch, Others, Unlabelled
from natgrad_paper.data import contrast, faces, faces_file
from natgrad_paper.data.labelled import EXPRESSIONS, FACE_SIDE, Faces, Labelled
from natgrad_paper.errors import UserError
from natgrad_paper.experiment import Errors, Experiment, Method, Problem
from natgrad_paper.experiments import curves
from natgrad_paper.experiments.unlabelled_claims import CLAIMS, GROUPS, VIEW
from natgrad_paper.experiments.unlabelled_config import Config
from natgrad_paper.gauges import StepKL
from natgrad_paper.models import ConvNet, Layers

GROUP = 1000
"""Faces normalised at a time."""


def ngd(problem: Problem, config: Config) -> ng.Optimizer:
    """Return natural gradient with a fixed rate: the same in all conditions."""
    return replace(curves.ngd(problem, config), microbatch=config.microbatch)


# The colours of the paper's figure: green, blue, red; told apart by colour-blind readers too.
METHODS = (
    Method(
        "same", "same samples", "#009E73", ngd, lambda c: Batches(Minibatch(c.ngd.batch)),
        about="gradient and metric on the same minibatch",
    ),
    Method(
        "other", "other samples", "#0072B2", ngd,
        lambda c: Batches(Minibatch(c.ngd.batch), Others(c.ngd.metric_batch)),
        about="metric on training cases that the gradient does not see in this step",
    ),
    Method(
        "unlabelled", "unlabelled samples", "#D55E00", ngd,
        lambda c: Batches(Minibatch(c.ngd.batch), Unlabelled(c.ngd.metric_batch)),
        about="metric on unlabelled faces",
    ),
    Method(
        "other-equal", "other (equal)", "#56B4E9", ngd,
        lambda c: Batches(Minibatch(c.ngd.batch), Others(c.ngd.batch)),
        about="the control: as many other training cases as the gradient has",
    ),
    Method(
        "unlabelled-equal", "unlabelled (equal)", "#E69F00", ngd,
        lambda c: Batches(Minibatch(c.ngd.batch), Unlabelled(c.ngd.batch)),
        about="the control: as many unlabelled faces as the gradient has cases",
    ),
)  # fmt: skip


def errors(model: ConvNet) -> Errors:
    """Return the measures of the figure: the cost, summed over outputs, and whether the largest output is wrong."""

    def measure(params: Layers, inputs: Array, targets: Array) -> dict[str, Array]:
        logits = model(params, inputs)
        wrong = jnp.argmax(logits, axis=-1) != jnp.argmax(targets, axis=-1)
        return {
            "cross_entropy": ng.Bernoulli().nll(logits, targets),
            "misclassified": wrong.astype(logits.dtype),
        }

    return measure


def inputs(images: np.ndarray, shrink: int) -> np.ndarray:
    """Return faces as the network sees them: normalised, shrunk, a row of pixels each."""
    side = FACE_SIDE // shrink
    rows = np.empty((len(images), side * side), np.float32)
    for first in range(0, len(images), GROUP):
        normal = np.asarray(contrast.normalize(jnp.asarray(images[first : first + GROUP])))
        cells = normal.reshape(-1, side, shrink, side, shrink).mean(axis=(2, 4))
        rows[first : first + GROUP] = cells.reshape(len(normal), -1)
    return rows


def targets(part: Labelled) -> np.ndarray:
    """Return a row of seven for each face: one at its expression, zero elsewhere."""
    return np.eye(len(EXPRESSIONS), dtype=np.float32)[part.labels]


def sights(found: Faces, columns: int, shrink: int) -> dict[str, np.ndarray]:
    """Return some training faces of each expression, as they come and as the network sees them, as bytes."""
    train = found.train
    lines = [train.images[train.labels == label][:columns] for label in range(len(EXPRESSIONS))]
    shown = np.full((len(lines), columns, FACE_SIDE, FACE_SIDE), 128, np.uint8)
    for place, line in zip(shown, lines, strict=True):
        place[: len(line)] = line
    seen = inputs(shown.reshape(-1, FACE_SIDE, FACE_SIDE), shrink)
    side = FACE_SIDE // shrink
    levels = np.round(255 * np.clip(seen, 0, 1)).astype(np.uint8).reshape(len(lines), columns, side, side)
    return {"as they come": shown, "as the network sees them": levels}


def read(config: Config, path: Path | None) -> Faces:
    """Return the faces: from the user's file at most as many as the config says, else drawn."""
    want = config.data
    if path is None:
        return faces.generate(want.seed, want.train, want.valid, want.test, want.unlabelled)
    found = faces_file.read(path, want.fold)
    few = {"train": len(found.train), "unlabelled": len(found.unlabelled)}
    least = max(config.ngd.batch, config.ngd.metric_batch)
    for what, need in (("train", config.ngd.batch + least), ("unlabelled", least)):
        if few[what] < need:
            raise UserError(f"{path}: expected at least {need} faces for {what}, found {few[what]}")
    counts = [
        min(many, len(part))
        for many, part in (
            (want.train, found.train), (want.valid, found.valid), (want.test, found.test),
            (want.unlabelled, found.unlabelled),
        )
    ]  # fmt: skip
    return found.first(*counts)


def constant(targets: np.ndarray) -> dict[str, float]:
    """Return the cost of the best constant answer: each expression as often as it is."""
    share = targets.mean(axis=0, dtype=np.float64)
    entropy = special.entr(share) + special.entr(1 - share)
    return {"cross_entropy": float(entropy.sum())}


def prepare(config: Config, path: Path | None) -> Problem:
    """Return the problem: faces of the user's file, else drawn ones."""
    found = read(config, path)
    shrink = config.data.shrink
    train, valid, test = (
        (inputs(part.images, shrink), targets(part)) for part in (found.train, found.valid, found.test)
    )
    size = config.model
    model = ConvNet(FACE_SIDE // shrink, size.filters, size.window, size.pool, size.units, len(EXPRESSIONS))
    likelihood = ng.Bernoulli()
    return Problem(
        model=model,
        likelihood=likelihood,
        init=model.init,
        errors=errors(model),
        train=train,
        test=test,
        data=found.describe(),
        valid=valid,
        pool=inputs(found.unlabelled, shrink),
        plateau=constant(train[1]),
        gauge=StepKL(model, likelihood, config.held_out) if config.held_out else None,
        sights=sights(found, config.data.shown, shrink) if config.data.shown else None,
    )


EXPERIMENT = Experiment(
    "unlabelled", "Figure 1: unlabelled data in the metric", Config, METHODS, prepare,
    ("same", "other", "unlabelled"), view=VIEW, claims=CLAIMS, groups=GROUPS,
)  # fmt: skip
