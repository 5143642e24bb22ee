"""The autoencoders on which the field reports Hessian-Free, K-FAC and momentum: the methods of Curves on other data.

MNIST, from a directory with its idx files: 784-1000-500-250-30 and back, Bernoulli outputs. Faces, from a file in the
format of `TFD_48x48.mat`, at half its resolution: 576-2000-1000-500-30 and back with the preset `faces`, Gaussian
outputs.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

import natgrad as ng
from natgrad_paper.data import faces_file, idx_file
from natgrad_paper.data.images import Images
from natgrad_paper.data.labelled import FACE_SIDE
from natgrad_paper.errors import UserError
from natgrad_paper.figures.base import figure
from natgrad_paper.figures.curves.claims import GROUPS
from natgrad_paper.figures.curves.methods import METHODS
from natgrad_paper.figures.curves.problem import Competition, Units, reconstruction
from natgrad_paper.report.story import Story
from natgrad_paper.training.models import Autoencoder, Hidden
from natgrad_paper.training.problem import Problem
from natgrad_paper.training.settings import Count, Section

SHRINK = 2
"""Faces are averaged over squares with sides of this many pixels."""


class Data(Section):
    """How many of the user's pictures are used, from the first on."""

    train: Count = 4000
    """Training pictures."""
    test: Annotated[int, Field(ge=0)] = 1000
    """Test pictures."""


class Model(Section):
    """The autoencoder: units from the first hidden layer to the code; the input is as large as the pictures."""

    encoder: Annotated[tuple[Units, ...], Field(strict=False, min_length=1, max_length=100)] = (
        1000, 500, 250, 30,
    )  # fmt: skip
    """Units of the layers down to the code, without the pixels."""
    hidden: Hidden = "sigmoid"
    """The function of the hidden units: "sigmoid" with sparse first weights, "relu" with uniform ones."""


class Settings(Competition):
    """The settings of the autoencoders; the methods' constants are those of Curves."""

    data: Data = Data()
    model: Model = Model()


def prepare(settings: Any, path: Path | None) -> Problem:
    """Return the problem of the user's files; there is no generated substitute."""
    if path is None:
        raise UserError("autoencoder: expected --data with MNIST's directory or a file of faces, found none")
    likelihood: ng.Likelihood
    if path.is_dir():
        images, likelihood, cost = idx_file.read(path), ng.Bernoulli(), "cross_entropy"
    else:
        images, likelihood, cost = halved_faces(path), ng.Gaussian(), "negative_log_likelihood"
    images = images.first(settings.data.train, settings.data.test)
    model = Autoencoder((images.train.shape[1], *settings.model.encoder), settings.model.hidden)
    return reconstruction(images, model, likelihood, cost)


def halved_faces(path: Path) -> Images:
    """Return the faces of a file; those marked for testing in its first fold are the test set."""
    found = faces_file.read(path)
    train = np.concatenate([found.train.images, found.valid.images, found.unlabelled])
    return Images(f"{found.name}, as pictures", _small(train), _small(found.test.images))


def _small(images: np.ndarray) -> np.ndarray:
    side = FACE_SIDE // SHRINK
    cells = images.reshape(-1, side, SHRINK, side, SHRINK).mean(axis=(2, 4), dtype=np.float32)
    return cells.reshape(len(images), -1) / np.float32(255)


DEPARTURES = ("The paper has no such experiment; its methods have the constants of Curves, not tuned here.",)
STORY = Story("Autoencoders of MNIST and of faces", groups=GROUPS, departures=DEPARTURES)
EXPERIMENT = figure("autoencoder", STORY, Settings, METHODS, prepare, ("sgd", "ngd", "ngd-l", "kncg"))
