"""The autoencoders on which the field reports Hessian-Free, K-FAC and momentum: the methods of Curves on other data.

MNIST, from a directory with its idx files: 784-1000-500-250-30 and back, Bernoulli outputs. Faces, from a file in the
format of `TFD_48x48.mat`, at half its resolution: 576-2000-1000-500-30 and back with the preset `faces`, Gaussian
outputs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

import natgrad as ng
from natgrad_paper.config import Count, Rule
from natgrad_paper.config import Whole as WholeNumber
from natgrad_paper.data import faces_file, idx_file
from natgrad_paper.data.images import Images
from natgrad_paper.data.labelled import FACE_SIDE
from natgrad_paper.errors import UserError
from natgrad_paper.experiment import Experiment, Problem
from natgrad_paper.experiments import curves
from natgrad_paper.experiments.curves_claims import GROUPS
from natgrad_paper.experiments.curves_config import Competition

SHRINK = 2
"""Faces are averaged over squares of so many pixels a side."""


@dataclass(frozen=True)
class Data:
    """How many pictures are used, the first of the user's."""

    train: Count
    test: WholeNumber


@dataclass(frozen=True)
class Model:
    """The autoencoder: units from the first hidden layer to the code; the input is as large as the pictures."""

    encoder: Annotated[
        tuple[int, ...], Rule("a list of whole numbers above 0", lambda units: units and min(units) >= 1)
    ]


@dataclass(frozen=True, kw_only=True)
class Config(Competition):
    """All of the experiment's numbers; the methods' are those of Curves."""

    data: Data
    model: Model

    def __post_init__(self) -> None:
        self.fits(self.data.train)


def faces(path: Path) -> Images:
    """Return the faces of a file: those marked for testing in its first fold to test on, the others to train on."""
    found = faces_file.read(path)
    train = np.concatenate([found.train.images, found.valid.images, found.unlabelled])
    return Images(f"{found.name}, as pictures", _small(train), _small(found.test.images))


def _small(images: np.ndarray) -> np.ndarray:
    side = FACE_SIDE // SHRINK
    cells = images.reshape(-1, side, SHRINK, side, SHRINK).mean(axis=(2, 4), dtype=np.float32)
    return cells.reshape(len(images), -1) / np.float32(255)


def prepare(config: Config, path: Path | None) -> Problem:
    """Return the problem that the user's files make; there is nothing to generate in their place."""
    if path is None:
        raise UserError("autoencoder: expected --data with MNIST's directory or a file of faces, found none")
    likelihood: ng.Likelihood
    if path.is_dir():
        images, likelihood, cost = idx_file.read(path), ng.Bernoulli(), "cross_entropy"
    else:
        images, likelihood, cost = faces(path), ng.Gaussian(), "negative_log_likelihood"
    images = images.first(config.data.train, config.data.test)
    return curves.reconstruction(images, (images.train.shape[1], *config.model.encoder), likelihood, cost)


EXPERIMENT = Experiment(
    "autoencoder", "Autoencoders of MNIST and of faces", Config, curves.METHODS, prepare,
    curves.EXPERIMENT.first_look, groups=GROUPS,
)  # fmt: skip
