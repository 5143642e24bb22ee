"""The problem of figure 1: a convolutional net learns expressions from faces."""

from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from pydantic import Field, model_validator
from scipy import special

import natgrad as ng
from natgrad_paper.data import contrast, faces, faces_file
from natgrad_paper.data.labelled import EXPRESSIONS, FACE_SIDE, Faces, Labelled
from natgrad_paper.figures.curves.methods import Damping, Solver
from natgrad_paper.figures.unlabelled.step_kl import StepKL
from natgrad_paper.training.models import ConvNet, Layers
from natgrad_paper.training.problem import Budget, Errors, Problem
from natgrad_paper.training.settings import Count, Section, Seed, Size, unfit

GROUP = 1000
"""Faces normalised at a time."""


class Data(Section):
    """How many faces are drawn, or at most taken from a file, and how the network sees them."""

    train: Count = 2925
    """Training faces."""
    valid: Count = 418
    """Validation faces."""
    test: Count = 835
    """Test faces."""
    unlabelled: Count = 4000
    """Faces without an expression, for the metric."""
    fold: Annotated[int, Field(ge=1, le=faces_file.FOLDS)] = 4
    """Which of a file's five folds is used; the default is the paper's. Drawn faces have no folds."""
    shrink: Annotated[int, Field(ge=1, le=FACE_SIDE)] = 3
    """After the normalisation, each square with sides of this many pixels becomes one pixel, their mean."""
    shown: Annotated[int, Field(ge=0, le=100)] = 4
    """Faces of each expression shown in the report: 0 for pictures that must not be passed on."""
    seed: Seed = 0
    """The seed that draws the faces (not the seed of a run)."""

    @model_validator(mode="after")
    def _fits(self) -> "Data":
        if FACE_SIDE % self.shrink:
            unfit("shrink", f"a whole number that divides {FACE_SIDE}", self.shrink)
        return self


class Model(Section):
    """The network: convolution, pooling, a dense layer; the seven outputs are the data's."""

    filters: Count = 12
    """Filters of the convolution."""
    window: Count = 5
    """Side of the filters, in pixels."""
    pool: Count = 3
    """Side of the pooling windows, which do not overlap."""
    units: Count = 48
    """Units of the dense layer."""


class Settings(Section):
    """The settings of figure 1."""

    budget: Budget = Budget(iterations=150, step_seconds=0.35, evaluations=30)
    solver: Solver = Solver(name="minres-qlp")
    damping: Damping = Damping(initial=5.0, reduction="linear")
    """With a fixed rate of 0.2 the paper's ratio tends to 0.9, so λ can move."""
    data: Data = Data()
    model: Model = Model()
    held_out: Annotated[int, Field(ge=0)] = 384
    """Validation inputs on which the KL of logged steps is measured; 0 to save the time."""
    evaluation_chunk: Size = 500
    """Cases evaluated at a time."""

    @model_validator(mode="after")
    def _fits(self) -> "Settings":
        side = FACE_SIDE // self.data.shrink
        if self.model.window + self.model.pool - 1 > side:
            unfit("model.window", f"with the pooling at most the pictures' {side}", self.model.window)
        return self


def prepare(settings: Any, path: Path | None) -> Problem:
    """Return the problem: faces of the user's file, else drawn ones."""
    found, shrink, size = read(settings.data, path), settings.data.shrink, settings.model
    parts = found.train, found.valid, found.test
    train, valid, test = ((inputs(part.images, shrink), targets(part)) for part in parts)
    model = ConvNet(FACE_SIDE // shrink, size.filters, size.window, size.pool, size.units, len(EXPRESSIONS))
    likelihood = ng.Bernoulli()
    return Problem(
        model=model,
        likelihood=likelihood,
        init=model.init,
        errors=errors(model),
        data=found.describe(),
        train=train,
        test=test,
        valid=valid,
        pool=inputs(found.unlabelled, shrink),
        gauge=StepKL(model, likelihood, settings.held_out) if settings.held_out else None,
        plateau=constant(train[1]),
        sights=sights(found, settings.data.shown, shrink) if settings.data.shown else None,
        lines=EXPRESSIONS,
    )


def read(want: Data, path: Path | None) -> Faces:
    """Return the faces: from the user's file at most as many as the settings say, else drawn."""
    if path is None:
        return faces.generate(want.seed, want.train, want.valid, want.test, want.unlabelled)
    found = faces_file.read(path, want.fold)
    have = len(found.train), len(found.valid), len(found.test), len(found.unlabelled)
    wanted = want.train, want.valid, want.test, want.unlabelled
    return found.first(*map(min, wanted, have))


def errors(model: ConvNet) -> Errors:
    """Return the measures of the figure: the cost, summed over outputs, and whether the largest output is wrong."""

    def measure(params: Layers, inputs: Array, targets: Array) -> dict[str, Array]:
        logits = model(params, inputs)
        wrong = jnp.argmax(logits, axis=-1) != jnp.argmax(targets, axis=-1)
        cost = ng.Bernoulli().nll(logits, targets)
        return {"cross_entropy": cost, "misclassified": wrong.astype(logits.dtype)}

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


def constant(targets: np.ndarray) -> dict[str, float]:
    """Return the cost of the best constant answer: the frequency of each expression."""
    share = targets.mean(axis=0, dtype=np.float64)
    entropy = special.entr(share) + special.entr(1 - share)
    return {"cross_entropy": float(entropy.sum())}


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
