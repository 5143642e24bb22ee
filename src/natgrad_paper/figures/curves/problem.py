"""The problem of figure 3: a deep autoencoder that reconstructs drawn curves."""

import math
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from pydantic import Field, model_validator

import natgrad as ng
from natgrad_paper.data import curves, curves_file
from natgrad_paper.data.images import Images
from natgrad_paper.figures.curves.methods import Damping, Solver
from natgrad_paper.training.models import Autoencoder, Layers
from natgrad_paper.training.problem import Budget, Problem
from natgrad_paper.training.settings import Section, Seed, Size, unfit

PIXELS = 784
Units = Annotated[int, Field(ge=1, le=10_000)]


class Data(Section):
    """How much of the data is used, and from which seed it comes."""

    train: Annotated[int, Field(ge=2, le=curves.TRAIN)] = 4000
    """Training cases, from the first on."""
    test: Annotated[int, Field(ge=0, le=curves.TEST)] = 1000
    """Test cases, from the first on."""
    seed: Seed = 0
    """The seed that generates the data (not the seed of a run)."""


class Model(Section):
    """The autoencoder: units from the input to the code; the decoder mirrors them."""

    encoder: Annotated[tuple[Units, ...], Field(strict=False, min_length=2, max_length=100)] = (
        PIXELS, 400, 200, 100, 50, 25, 6,
    )  # fmt: skip
    """Units of the layers down to the code, the pixels first."""

    @model_validator(mode="after")
    def _fits(self) -> "Model":
        if self.encoder[0] != PIXELS:
            unfit("encoder", f"a list that starts with {PIXELS}, the pixels of an image", list(self.encoder))
        return self


class Competition(Section):
    """What the autoencoders share beside the constants of the methods."""

    budget: Budget = Budget(seconds=45.0, evaluations=30, first=0.3)
    solver: Solver = Solver()
    damping: Damping = Damping()
    evaluation_chunk: Size = 1000
    """Cases evaluated at a time."""


class Settings(Competition):
    """The settings of the Curves benchmark."""

    data: Data = Data()
    model: Model = Model()


def reconstruction(
    images: Images, model: Autoencoder, likelihood: Any, cost: str = "cross_entropy"
) -> Problem:
    """Return the problem of reconstructing square images, with the figure's measures, which are sums over pixels.

    The likelihood's negative logarithm is minimized; the logs call it `cost`.
    """

    def errors(params: Layers, inputs: Array, targets: Array) -> dict[str, Array]:
        outputs = model(params, inputs)
        difference = likelihood.mean(outputs) - targets
        return {"squared_error": jnp.sum(difference**2, axis=-1), cost: likelihood.nll(outputs, targets)}

    side = math.isqrt(model.encoder[0])
    return Problem(
        model=model,
        likelihood=likelihood,
        init=model.init,
        errors=errors,
        data=images.describe(),
        train=(images.train, images.train),
        test=(images.test, images.test) if len(images.test) else None,
        reconstruct=lambda params, inputs: likelihood.mean(model(params, inputs)).reshape(-1, side, side),
        # The mean image is the best constant answer: its error is the variance of the pixels.
        plateau={"squared_error": float(images.train.var(axis=0, dtype=np.float64).sum())},
    )


def prepare(settings: Any, path: Path | None) -> Problem:
    """Return the problem, with the original data if the user has them, else with regenerated data."""
    want = settings.data
    if path is None:
        images = curves.generate(want.seed, want.train, want.test)
    else:
        images = curves_file.read(path).first(want.train, want.test, str(path))
    return reconstruction(images, Autoencoder(settings.model.encoder), ng.Bernoulli())
