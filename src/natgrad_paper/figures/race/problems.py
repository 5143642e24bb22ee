"""The problems of the race: an autoencoder, a classifier, a recurrent net. All of them minimize `error`."""

import hashlib
from dataclasses import replace
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from pydantic import Field
from scipy import special

import natgrad as ng
from natgrad_paper.data import characters, curves, glyphs
from natgrad_paper.figures.curves.problem import PIXELS, Units, reconstruction
from natgrad_paper.training.models import Autoencoder, Classifier, Recurrent, sparse_init
from natgrad_paper.training.problem import Budget, Cases, Problem, shapes
from natgrad_paper.training.settings import Count, Positive, Section, Size

TICKS = 20
BLOCK = 1000
"""Characters drawn at a time."""


class Data(Section):
    """How many cases there are."""

    train: Count = 20_000
    """Training cases."""
    test: Count = 5_000
    """Test cases."""


class Model(Section):
    """The network."""

    units: Annotated[tuple[Units, ...], Field(strict=False, min_length=1)] = (400, 200, 100, 50, 25, 6)
    """Hidden units: to the code of the autoencoder, to the classes, or of the recurrent net (one number)."""


class Settings(Section):
    """The settings of the race. There is one preset per problem."""

    problem: Literal["curves", "characters", "addition"] = "curves"
    """The Curves autoencoder, 62 deformed characters to classify, or a recurrent net that adds two marked numbers."""
    levels: Annotated[tuple[Positive, ...], Field(strict=False)] = (1.0, 0.5, 0.3)
    """Training errors: the time to each of them is compared."""
    turn: Positive = 5.0
    """Seconds of training that each method has before it is the next one's turn."""
    budget: Budget = Budget(seconds=135.0, evaluations=40, first=1.0)
    data: Data = Data()
    model: Model = Model()
    evaluation_chunk: Size = 1000
    """Cases evaluated at a time."""


def prepare(settings: Any, path: Any) -> Problem:
    """Return the problem that the settings name; there is no file of the user's to read."""
    make = {"curves": autoencoder, "characters": classifier, "addition": recurrent}[settings.problem]
    return make(settings.data.train, settings.data.test, settings.model.units)


def autoencoder(train: int, test: int, units: tuple[int, ...]) -> Problem:
    """Return the paper's autoencoder on Curves."""
    whole = reconstruction(curves.generate(0, train, test), Autoencoder((PIXELS, *units)), ng.Bernoulli())

    def errors(params: Any, inputs: Array, targets: Array) -> dict[str, Array]:
        return {"error": whole.errors(params, inputs, targets)["squared_error"]}

    return replace(whole, errors=errors, plateau={"error": whole.plateau["squared_error"]})


def classifier(train: int, test: int, units: tuple[int, ...]) -> Problem:
    """Return a classifier of 62 kinds of deformed characters."""
    found = glyphs.embedded()
    source, side = characters.source(found), characters.SIDE
    model, likelihood = Classifier((side**2, *units, glyphs.CLASSES)), ng.Categorical()

    def drawn(first: int, count: int) -> Cases:
        parts = np.array_split(np.arange(first, first + count, dtype=np.uint32), -(-count // BLOCK))
        pairs = [characters.draw(source, characters.stream(0), jnp.asarray(part)) for part in parts]
        inputs, labels = zip(*jax.device_get(pairs), strict=True)
        return np.concatenate(inputs), np.concatenate(labels)

    def init(seed: int) -> Any:
        return jax.tree.map(lambda leaf: leaf / 2, sparse_init(model.units, seed))

    def errors(params: Any, inputs: Array, targets: Array) -> dict[str, Array]:
        return {"error": likelihood.nll(model(params, inputs), targets)}

    cases = drawn(0, train), drawn(train, test)
    share = np.bincount(cases[0][1], minlength=glyphs.CLASSES) / train
    plateau = {"error": float(special.entr(share).sum())}
    data = hashed(f"deformed characters ({found.name})", *cases)
    return Problem(model, likelihood, init, errors, data, *cases, plateau=plateau)


def recurrent(train: int, test: int, units: tuple[int, ...]) -> Problem:
    """Return the addition task (Hochreiter and Schmidhuber 1997): the mean of two marked numbers of a sequence."""
    model, likelihood = Recurrent(2, units[0]), ng.Gaussian()

    def drawn(seed: int, count: int) -> Cases:
        generator = np.random.default_rng([seed, 0xADD])
        values, ticks = generator.random((count, TICKS)), np.arange(TICKS)
        early, late = generator.integers(0, 2, (count, 1)), generator.integers(2, TICKS // 2, (count, 1))
        marks = (ticks == early) | (ticks == late)
        inputs = np.stack([values, marks], axis=2).astype(np.float32)
        return inputs, (inputs.prod(axis=2).sum(axis=1, keepdims=True) / 2).astype(np.float32)

    def errors(params: Any, inputs: Array, targets: Array) -> dict[str, Array]:
        return {"error": jnp.sum((model(params, inputs) - targets) ** 2, axis=-1)}

    cases = drawn(0, train), drawn(1, test)
    plateau = {"error": float(cases[0][1].var(dtype=np.float64))}
    data = hashed(f"addition over {TICKS} ticks", *cases)
    return Problem(model, likelihood, model.init, errors, data, *cases, plateau=plateau)


def hashed(name: str, train: Cases, test: Cases) -> dict[str, Any]:
    """Return what a log says about data: name, hash and the shapes of both parts."""
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in (*train, *test)))
    return {"name": name, "sha256": digest.hexdigest(), **shapes(train=train, test=test)}
